package main

import (
	"fmt"
	"runtime"
	"sort"
	"sync"
	"time"
)

// Judge finds what is wrong with a history; `limit` is the time for each key. An error means that it cannot be judged.
func Judge(history *History, limit time.Duration) (*Verdict, error) {
	verdict := &Verdict{}
	hasTxn := map[string]bool{}
	byKey := map[place][]*Op{}
	for _, op := range history.Ops {
		if op.IsTxn {
			hasTxn[op.Object] = true
		}
		for _, key := range keys(op) {
			at := place{op.Object, key}
			byKey[at] = append(byKey[at], op)
		}
	}
	places := sortedPlaces(byKey)
	verdicts, errs := make([]Verdict, len(places)), make([]error, len(places))
	graphs := map[string]*graph{}
	for object := range hasTxn {
		graphs[object] = newGraph(history.Ops, object)
	}
	// Each core judges keys of its own.
	var group sync.WaitGroup
	next := make(chan int)
	for worker := 0; worker < runtime.GOMAXPROCS(0); worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range next {
				at := places[i]
				errs[i] = judgeKey(at, byKey[at], graphs[at.object], limit, &verdicts[i])
			}
		}()
	}
	for i := range places {
		next <- i
	}
	close(next)
	group.Wait()
	for i := range places {
		if errs[i] != nil {
			return nil, errs[i]
		}
		verdict.Faults = append(verdict.Faults, verdicts[i].Faults...)
		verdict.Undecided = append(verdict.Undecided, verdicts[i].Undecided...)
	}
	for _, object := range sortedObjects(graphs) {
		graphs[object].check(verdict)
	}
	return verdict, nil
}

// judgeKey judges one key by itself, and adds what it says about the order of transactions to their graph, if there is one.
func judgeKey(at place, ops []*Op, graph *graph, limit time.Duration, verdict *Verdict) error {
	isList, err := hasList(at, ops)
	if err != nil {
		return err
	}
	model := registerModel
	if isList {
		view, err := newListView(at, ops)
		if err != nil {
			return err
		}
		view.check(verdict)
		if graph != nil {
			graph.addList(view)
		}
		model = listModel
		if len(verdict.Faults) == 0 && !inTxn(ops) {
			ops = withPlaces(ops, view)
		}
	} else {
		view := newRegisterView(at, ops)
		view.check(verdict)
		if graph != nil {
			if err := graph.addRegister(view); err != nil {
				return err
			}
		}
	}
	if len(verdict.Faults) == 0 && !inTxn(ops) {
		linearizable(at, ops, model, limit, verdict)
	}
	return nil
}

// withPlaces gives the appends without a known result the places that others have seen their values at.
func withPlaces(ops []*Op, view *listView) []*Op {
	known := make([]*Op, len(ops))
	for i, op := range ops {
		known[i] = op
		source := view.appends[op.Steps[0].Value]
		if op.Steps[0].Kind == "append" && op.Outcome != Failed && source.place >= 0 {
			step := op.Steps[0]
			step.Result.Place = source.place
			copied := *op
			copied.Steps = []Step{step}
			known[i] = &copied
		}
	}
	return known
}

func inTxn(ops []*Op) bool {
	for _, op := range ops {
		if op.IsTxn {
			return true
		}
	}
	return false
}

func hasList(at place, ops []*Op) (bool, error) {
	isList := false
	for _, op := range ops {
		for i := range op.Steps {
			if step := &op.Steps[i]; step.Key == at.key {
				isList = isList || isOfList(step)
			}
		}
	}
	for _, op := range ops {
		for i := range op.Steps {
			if step := &op.Steps[i]; step.Key == at.key && isOfList(step) != isList {
				return false, fmt.Errorf("%v is used as a list and as a register", at)
			}
		}
	}
	return isList, nil
}

// keys returns the keys of an operation, each once.
func keys(op *Op) []string {
	var keys []string
next:
	for i := range op.Steps {
		for _, key := range keys {
			if key == op.Steps[i].Key {
				continue next
			}
		}
		keys = append(keys, op.Steps[i].Key)
	}
	return keys
}

func sortedPlaces(byKey map[place][]*Op) []place {
	var places []place
	for at := range byKey {
		places = append(places, at)
	}
	sort.Slice(places, func(i, j int) bool {
		if places[i].object != places[j].object {
			return places[i].object < places[j].object
		}
		return places[i].key < places[j].key
	})
	return places
}

func sortedObjects(graphs map[string]*graph) []string {
	var objects []string
	for object := range graphs {
		objects = append(objects, object)
	}
	sort.Strings(objects)
	return objects
}
