package main

import "sort"

// seenValue is a value that an operation has found in a register.
type seenValue struct {
	op      *Op
	value   string
	promise Promise
}

// registerView is all that a history says about one register.
type registerView struct {
	at  place
	ops []*Op
	// The operations that may have written each value.
	writers map[string][]*Op
	// All that may have written, and those that have.
	written []*Op
	seen    []seenValue
	// The values that an operation has replaced by others, seeing them.
	replaced []seenValue
}

func isOfRegister(step *Step) bool {
	return !isOfList(step)
}

// newRegisterView collects what is known of a register.
func newRegisterView(at place, ops []*Op) *registerView {
	view := &registerView{at: at, ops: ops, writers: map[string][]*Op{}}
	for _, op := range ops {
		isWritten := false
		for i := range op.Steps {
			step := &op.Steps[i]
			if step.Key != at.key || !isOfRegister(step) {
				continue
			}
			isRefused := step.Kind == "cas" && op.Outcome == OK && !step.Result.Written
			if step.Kind != "read" && !isRefused {
				view.writers[step.Value] = append(view.writers[step.Value], op)
				if op.Outcome == OK {
					view.written = append(view.written, op)
				}
			}
			if op.Outcome == OK && !isWritten {
				switch {
				case step.Kind == "read":
					view.seen = append(view.seen, seenValue{op, step.Result.Value, step.Promise})
				case step.Kind == "cas" && step.Result.Written:
					view.seen = append(view.seen, seenValue{op, step.Expected, Latest})
					view.replaced = append(view.replaced, seenValue{op, step.Expected, Latest})
				}
			}
			if step.Kind == "write" && !isWritten {
				isWritten = true
				if last := len(view.seen) - 1; op.Outcome == OK && last >= 0 && view.seen[last].op == op {
					view.replaced = append(view.replaced, view.seen[last])
				}
			}
		}
	}
	return view
}

// check finds what is wrong whatever the order of concurrent operations.
func (view *registerView) check(verdict *Verdict) {
	before := len(verdict.Faults)
	for _, op := range view.ops {
		if op.Outcome == OK && op.IsTxn {
			view.checkInside(op, verdict)
		}
	}
	for _, seen := range view.seen {
		if seen.value != nothing {
			view.checkSource(seen, verdict)
		}
	}
	if len(verdict.Faults) > before {
		return
	}
	view.checkSwaps(verdict)
	view.checkRealTime(verdict)
	view.checkSessions(verdict)
}

// checkInside compares what a transaction reads with what it has read and written before.
func (view *registerView) checkInside(op *Op, verdict *Verdict) {
	var known *string
	for i := range op.Steps {
		step := &op.Steps[i]
		switch {
		case step.Key != view.at.key:
		case step.Kind == "write":
			known = &step.Value
		case known != nil && step.Result.Value != *known:
			verdict.fault("internal", "%v: an operation does not see what it has itself written or read before: %v", view.at, op)
			return
		default:
			known = &step.Result.Value
		}
	}
}

func (view *registerView) checkSource(seen seenValue, verdict *Verdict) {
	isFailed, isLater, isIntermediate := true, true, true
	for _, writer := range view.writers[seen.value] {
		isFailed = isFailed && writer.Outcome == Failed
		isIntermediate = isIntermediate && writer != seen.op && lastWritten(writer, view.at.key) != seen.value
		isLater = isLater && (writer.Outcome == Failed || writer.Call > seen.op.Return)
	}
	switch {
	case len(view.writers[seen.value]) == 0:
		verdict.fault("garbage-read", "%v: %s was never written: %v", view.at, seen.value, seen.op)
	case isFailed:
		verdict.fault("G1a", "%v: %s is seen, whose write has failed (aborted read): %v; %v", view.at, seen.value, seen.op, view.writers[seen.value][0])
	case isIntermediate:
		verdict.fault("G1b", "%v: %s is seen, over which the same transaction writes (intermediate read): %v; %v", view.at, seen.value, seen.op, view.writers[seen.value][0])
	case isLater:
		verdict.fault("future-read", "%v: %s is seen before its write was called: %v; %v", view.at, seen.value, seen.op, view.writers[seen.value][0])
	}
}

// source returns the only operation that may have written a value. The value that was there first has none; `isOnce` is false if there
// may have been several.
func (view *registerView) source(value string) (writer *Op, isOnce bool) {
	var source *Op
	for _, writer := range view.writers[value] {
		if writer.Outcome == Failed {
			continue
		}
		if source != nil || value == nothing {
			return nil, false
		}
		source = writer
	}
	return source, true
}

// checkSwaps finds a value that two operations have replaced, and that was written once.
func (view *registerView) checkSwaps(verdict *Verdict) {
	from := map[string]*Op{}
	for _, seen := range view.replaced {
		other := from[seen.value]
		if _, isOnce := view.source(seen.value); other != nil && isOnce {
			class := "cas-twice"
			if seen.op.IsTxn || other.IsTxn {
				class = "lost-update"
			}
			verdict.fault(class, "%v: two operations have seen and replaced %s, which was there once: %v; %v", view.at, seen.value, other, seen.op)
			return
		}
		from[seen.value] = seen.op
	}
}

// checkRealTime finds reads of a value that another one had replaced before they were called.
func (view *registerView) checkRealTime(verdict *Verdict) {
	first := firstAfter(view.written)
	isSeen := map[string]bool{}
	for _, seen := range view.seen {
		isSeen[seen.value] = true
	}
	for _, seen := range view.seen {
		writer, isOnce := view.source(seen.value)
		if !isOnce || seen.promise != Latest {
			continue
		}
		written := int64(-1 << 62)
		if writer != nil {
			written = writer.Return
		}
		newer := first(written)
		if newer == nil || newer == seen.op || newer.Return >= seen.op.Call {
			continue
		}
		class := "stale-read"
		if value := lastWritten(newer, view.at.key); !isSeen[value] {
			class = "lost-write"
		}
		verdict.fault(class, "%v: %s was replaced before the call: %v; %v", view.at, seen.value, seen.op, newer)
		return
	}
}

func lastWritten(op *Op, key string) string {
	value := nothing
	for i := range op.Steps {
		if step := &op.Steps[i]; step.Key == key && (step.Kind == "write" || step.Kind == "cas") {
			value = step.Value
		}
	}
	return value
}

// firstAfter returns a function that finds, among the operations called after some time, the one that returned first.
func firstAfter(ops []*Op) func(int64) *Op {
	sorted := byCall(ops)
	first := make([]*Op, len(sorted)+1)
	for i := len(sorted) - 1; i >= 0; i-- {
		first[i] = sorted[i]
		if later := first[i+1]; later != nil && later.Return <= sorted[i].Return {
			first[i] = later
		}
	}
	return func(time int64) *Op {
		return first[sort.Search(len(sorted), func(i int) bool { return sorted[i].Call > time })]
	}
}

// checkSessions finds clients that read a value which had been replaced before one that they have seen was written.
func (view *registerView) checkSessions(verdict *Verdict) {
	byClient := map[string][]seenValue{}
	for _, seen := range view.seen {
		byClient[seen.op.Client] = append(byClient[seen.op.Client], seen)
	}
	for _, op := range view.written {
		byClient[op.Client] = append(byClient[op.Client], seenValue{op, lastWritten(op, view.at.key), Latest})
	}
	for _, calls := range byClient {
		returns := append([]seenValue(nil), calls...)
		sort.SliceStable(calls, func(i, j int) bool { return calls[i].op.Call < calls[j].op.Call })
		sort.SliceStable(returns, func(i, j int) bool { return returns[i].op.Return < returns[j].op.Return })
		// The writer, of all values that the client has seen, that was called last.
		var newest *Op
		for _, later := range calls {
			for len(returns) > 0 && returns[0].op.Return < later.op.Call {
				writer, isOnce := view.source(returns[0].value)
				if isOnce && writer != nil && (newest == nil || writer.Call > newest.Call) {
					newest = writer
				}
				returns = returns[1:]
			}
			writer, isOnce := view.source(later.value)
			if later.promise == Session && isOnce && newest != nil && (writer == nil || writer.Return < newest.Call) {
				verdict.fault("session", "%v: the client has seen a newer value, of %v, and sees %s: %v", view.at, newest, later.value, later.op)
				return
			}
		}
	}
}
