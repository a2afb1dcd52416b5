package main

import (
	"fmt"
	"sort"
)

// appended is a value that some operation appends to a list.
type appended struct {
	op *Op
	// Whether the operation appends nothing behind it to the same list.
	isLast bool
	// The place that the operation returned or that a reader has seen, or -1.
	place int
	// Whether a read has seen it.
	isSeen bool
}

// sighting is a part of a list that an operation has seen.
type sighting struct {
	op       *Op
	from     int
	values   []string
	coversTo bool // whether there was nothing behind it
	promise  Promise
}

// length is the number of values that the list had at least.
func (s *sighting) length() int {
	if len(s.values) == 0 {
		return 0
	}
	return s.from + len(s.values)
}

// listView is all that a history says about one list.
type listView struct {
	at        place
	appends   map[string]*appended
	ops       []*Op
	sightings []sighting
	// The values at the places that are known, by operation that has seen them there first.
	order []placed
}

type placed struct {
	value string
	by    *Op
}

// newListView collects what is known of a list. An error says why it cannot be judged.
func newListView(at place, ops []*Op) (*listView, error) {
	view := &listView{at: at, appends: map[string]*appended{}, ops: ops}
	for _, op := range ops {
		var last *appended
		for i := range op.Steps {
			step := &op.Steps[i]
			if step.Key != at.key || !isOfList(step) {
				continue
			}
			if step.Kind == "append" {
				if view.appends[step.Value] != nil {
					return nil, fmt.Errorf("%v: %s is appended by two operations: in a list, each value has to be a new one", at, step.Value)
				}
				if last != nil {
					last.isLast = false
				}
				last = &appended{op: op, isLast: true, place: -1}
				view.appends[step.Value] = last
			}
			if op.Outcome == OK && step.Result.List != nil {
				result := &step.Result
				coversTo := step.To == 0 || len(result.List) < step.To-step.From
				view.sightings = append(view.sightings, sighting{op, step.From, result.List, coversTo, step.Promise})
			}
		}
	}
	return view, nil
}

func isOfList(step *Step) bool {
	return step.Kind == "append" || step.Kind == "list"
}

// check finds what is wrong whatever the order of concurrent operations, and puts the list's order together.
func (view *listView) check(verdict *Verdict) {
	before := len(verdict.Faults)
	for _, op := range view.ops {
		if op.Outcome == OK {
			view.checkInside(op, verdict)
		}
	}
	for i := range view.sightings {
		view.checkValues(&view.sightings[i], verdict)
	}
	view.place(verdict)
	if len(verdict.Faults) > before {
		return
	}
	view.checkLost(verdict)
	view.checkRealTime(verdict)
	view.checkSessions(verdict)
}

// checkInside compares what a transaction reads with what it has read and appended before.
func (view *listView) checkInside(op *Op, verdict *Verdict) {
	var seen, own []string
	isRead := false
	for i := range op.Steps {
		step := &op.Steps[i]
		if step.Key != view.at.key || !isOfList(step) {
			continue
		}
		if step.Kind == "append" {
			own = append(own, step.Value)
			if isRead && step.Result.Place >= 0 && step.Result.Place != len(seen)+len(own)-1 {
				verdict.fault("internal", "%v: the append has another place than behind what its transaction has read: %v", view.at, op)
			}
		}
		list := step.Result.List
		if list == nil {
			continue
		}
		begin := len(list) - len(own)
		if begin < 0 || !isPrefix(own, list[begin:]) || (isRead && (begin != len(seen) || !isPrefix(seen, list))) {
			verdict.fault("internal", "%v: an operation does not see what it has itself appended or read before: %v", view.at, op)
			return
		}
		seen, own, isRead = list, nil, true
	}
}

// checkValues looks at each value that was seen.
func (view *listView) checkValues(s *sighting, verdict *Verdict) {
	twice := make(map[string]bool, len(s.values))
	for _, value := range s.values {
		if twice[value] {
			verdict.fault("duplicate", "%v: %s is in the list twice, so it was applied twice: %v", view.at, value, s.op)
			return
		}
		twice[value] = true
		source := view.appends[value]
		switch {
		case source == nil:
			verdict.fault("garbage-read", "%v: %s was never appended: %v", view.at, value, s.op)
			return
		case source.op.Outcome == Failed:
			verdict.fault("G1a", "%v: %s is seen, whose append has failed (aborted read): %v; %v", view.at, value, s.op, source.op)
			return
		case source.op.Call > s.op.Return:
			verdict.fault("future-read", "%v: %s is seen before its append was called: %v; %v", view.at, value, s.op, source.op)
			return
		}
		source.isSeen = true
	}
	if len(s.values) == 0 || !s.coversTo {
		return
	}
	last := s.values[len(s.values)-1]
	if source := view.appends[last]; source.op != s.op && !source.isLast {
		verdict.fault("G1b", "%v: the list ends with %s, behind which the same transaction appends more (intermediate read): %v; %v",
			view.at, last, s.op, source.op)
	}
}

// place finds the one order that all have seen.
func (view *listView) place(verdict *Verdict) {
	places := map[string]int{}
	put := func(value string, at int, by *Op) bool {
		for len(view.order) <= at {
			view.order = append(view.order, placed{})
		}
		known := &view.order[at]
		if known.by != nil && known.value != value {
			verdict.fault("incompatible-order", "%v: place %d has %s in one operation and %s in another: %v; %v",
				view.at, at, known.value, value, known.by, by)
			return false
		}
		if other, is := places[value]; is && other != at {
			verdict.fault("duplicate", "%v: %s is at the places %d and %d: %v; %v", view.at, value, other, at, view.order[other].by, by)
			return false
		}
		if known.by == nil {
			*known, places[value] = placed{value, by}, at
		}
		return true
	}
	for _, s := range view.sightings {
		for i, value := range s.values {
			if !put(value, s.from+i, s.op) {
				return
			}
		}
	}
	for _, op := range view.ops {
		for i := range op.Steps {
			step := &op.Steps[i]
			isPlaced := step.Key == view.at.key && step.Kind == "append" && step.Result.Place >= 0
			if isPlaced && !put(step.Value, step.Result.Place, op) {
				return
			}
		}
	}
	for value, at := range places {
		if source := view.appends[value]; source != nil {
			source.place = at
		}
	}
}

// checkLost finds acknowledged appends that a later read of the whole list lacks, and that no other has seen.
func (view *listView) checkLost(verdict *Verdict) {
	var last *sighting
	for i := range view.sightings {
		s := &view.sightings[i]
		if s.promise == Latest && s.from == 0 && s.coversTo && (last == nil || s.op.Call > last.op.Call) {
			last = s
		}
	}
	if last == nil {
		return
	}
	for _, value := range view.values() {
		source := view.appends[value]
		isBehind := source.place >= len(last.values) || source.place < 0
		if source.op.Outcome == OK && !source.isSeen && isBehind && source.op.Return < last.op.Call {
			verdict.fault("lost-append", "%v: %s was acknowledged, and is in no list that was read later: %v; %v", view.at, value, source.op, last.op)
		}
	}
}

// values are the values of the appends in the order of the file.
func (view *listView) values() []string {
	var values []string
	for _, op := range view.ops {
		for i := range op.Steps {
			if step := &op.Steps[i]; step.Key == view.at.key && step.Kind == "append" {
				values = append(values, step.Value)
			}
		}
	}
	return values
}

// bound is what an operation says about the list's length.
type bound struct {
	op *Op
	// The list had so many values when the operation took effect, or before.
	least int
	// The list had no more when it took effect; -1 if that is not known.
	most    int
	promise Promise
}

// bounds returns what all operations say about the list's length.
func (view *listView) bounds() []bound {
	var bounds []bound
	for _, s := range view.sightings {
		most := -1
		if s.coversTo {
			most = s.from + len(s.values)
		}
		bounds = append(bounds, bound{s.op, s.length(), most, s.promise})
	}
	for _, value := range view.values() {
		if source := view.appends[value]; source.op.Outcome == OK && source.place >= 0 {
			bounds = append(bounds, bound{source.op, source.place + 1, source.place, Latest})
		}
	}
	return bounds
}

// checkRealTime finds operations that do not see what was there before their call.
func (view *listView) checkRealTime(verdict *Verdict) {
	calls := view.bounds()
	returns := append([]bound(nil), calls...)
	sort.SliceStable(calls, func(i, j int) bool { return calls[i].op.Call < calls[j].op.Call })
	sort.SliceStable(returns, func(i, j int) bool { return returns[i].op.Return < returns[j].op.Return })
	longest := bound{}
	for _, later := range calls {
		for len(returns) > 0 && returns[0].op.Return < later.op.Call {
			if returns[0].least > longest.least {
				longest = returns[0]
			}
			returns = returns[1:]
		}
		// The operations that append and see the list say the same twice.
		if later.most < 0 || later.promise != Latest || later.most >= longest.least {
			continue
		}
		switch {
		case later.most == later.least-1:
			verdict.fault("order-inversion", "%v: the append is at place %d, although the list was longer before its call: %v; %v",
				view.at, later.most, later.op, longest.op)
		default:
			verdict.fault("stale-read", "%v: the list has %d values, and had %d before the call: %v; %v",
				view.at, later.most, longest.least, later.op, longest.op)
		}
		return
	}
}

// checkSessions finds clients that read an earlier state than they have seen.
func (view *listView) checkSessions(verdict *Verdict) {
	byClient := map[string][]bound{}
	for _, b := range view.bounds() {
		byClient[b.op.Client] = append(byClient[b.op.Client], b)
	}
	for _, calls := range byClient {
		returns := append([]bound(nil), calls...)
		sort.SliceStable(calls, func(i, j int) bool { return calls[i].op.Call < calls[j].op.Call })
		sort.SliceStable(returns, func(i, j int) bool { return returns[i].op.Return < returns[j].op.Return })
		longest := bound{}
		for _, later := range calls {
			for len(returns) > 0 && returns[0].op.Return < later.op.Call {
				if returns[0].least > longest.least {
					longest = returns[0]
				}
				returns = returns[1:]
			}
			if later.promise == Session && later.most >= 0 && later.most < longest.least {
				verdict.fault("session", "%v: the client has seen %d values before, and sees %d: %v; %v",
					view.at, longest.least, later.most, later.op, longest.op)
				return
			}
		}
	}
}

// isPrefix returns whether `list` begins with `beginning`.
func isPrefix(beginning, list []string) bool {
	if len(beginning) > len(list) {
		return false
	}
	for i, value := range beginning {
		if list[i] != value {
			return false
		}
	}
	return true
}
