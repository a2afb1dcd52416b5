package main

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/anishathalye/porcupine"
)

// registerModel is a register with read, write and compare-and-set. The state is the value.
var registerModel = porcupine.Model{
	Init: func() interface{} { return nothing },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		value, step, isKnown := state.(string), input.(*Step), output.(bool)
		switch step.Kind {
		case "read":
			return !isKnown || step.Result.Value == value, value
		case "write":
			return true, step.Value
		default:
			matches := value == step.Expected
			if isKnown && matches != step.Result.Written {
				return false, value
			}
			if matches {
				return true, step.Value
			}
			return true, value
		}
	},
}

// cell is a list: its last value, and what is in front of it. The empty list is nil.
type cell struct {
	front  *cell
	value  string
	length int
	hash   uint64
}

var hashSeed = maphash.MakeSeed()

func (c *cell) with(value string) *cell {
	return &cell{c, value, c.len() + 1, mixed(c.sum(), maphash.String(hashSeed, value))}
}

func (c *cell) len() int {
	if c == nil {
		return 0
	}
	return c.length
}

func (c *cell) sum() uint64 {
	if c == nil {
		return 0
	}
	return c.hash
}

func mixed(hash, value uint64) uint64 {
	x := (hash ^ value) + 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

// has returns whether the values are the list's from this place on.
func (c *cell) has(from int, values []string) bool {
	for c.len() > from+len(values) {
		c = c.front
	}
	if c.len() < from+len(values) {
		return false
	}
	for i := len(values) - 1; i >= 0; i-- {
		if c.value != values[i] {
			return false
		}
		c = c.front
	}
	return true
}

// isResult returns whether a read of the list may have this step's result.
func (c *cell) isResult(step *Step) bool {
	values := step.Result.List
	end := c.len()
	if step.To > 0 && step.To < end {
		end = step.To
	}
	if step.From >= end {
		return len(values) == 0
	}
	return len(values) == end-step.From && c.has(step.From, values)
}

// listModel is a list with append and reads.
var listModel = porcupine.Model{
	Init: func() interface{} { return (*cell)(nil) },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		list, step, isKnown := state.(*cell), input.(*Step), output.(bool)
		if step.Kind == "list" {
			return !isKnown || list.isResult(step), list
		}
		// An append of unknown outcome has the place that others have seen its value at.
		if step.Result.Place >= 0 && step.Result.Place != list.len() {
			return false, list
		}
		longer := list.with(step.Value)
		return !isKnown || step.Result.List == nil || longer.isResult(step), longer
	},
	Equal: func(one, other interface{}) bool {
		a, b := one.(*cell), other.(*cell)
		return a.len() == b.len() && a.sum() == b.sum()
	},
}

// linearizable judges the operations on one key by Porcupine's search.
func linearizable(at place, ops []*Op, model porcupine.Model, limit time.Duration, verdict *Verdict) {
	deadline := time.Now().Add(limit)
	switch judge(ops, never, model, deadline) {
	case porcupine.Unknown:
		verdict.Undecided = append(verdict.Undecided,
			fmt.Sprintf("%v: not decided within %v whether its %d operations are linearizable", at, limit, len(ops)))
	case porcupine.Illegal:
		verdict.fault("not-linearizable", "%v: %s", at, explain(ops, model, time.Now().Add(limit)))
	}
}

// judge checks what was known at the time `until`: operations that had not returned may have been applied.
func judge(ops []*Op, until int64, model porcupine.Model, deadline time.Time) porcupine.CheckResult {
	var calls []porcupine.Operation
	for _, op := range ops {
		step := &op.Steps[0]
		if op.Outcome == Failed || step.Promise != Latest || op.Call > until {
			continue
		}
		isKnown := op.Outcome == OK && op.Return <= until
		if !isKnown && (step.Kind == "read" || step.Kind == "list") {
			continue
		}
		call := porcupine.Operation{Input: step, Call: op.Call, Output: isKnown, Return: never}
		if isKnown {
			call.Return = op.Return
		}
		calls = append(calls, call)
	}
	left := time.Until(deadline)
	if left <= 0 {
		return porcupine.Unknown
	}
	return porcupine.CheckOperationsTimeout(model, calls, left)
}

// explain finds the first return that no order of the operations explains. What is known earlier is less, so a search by halves finds it.
func explain(ops []*Op, model porcupine.Model, deadline time.Time) string {
	sorted := byReturn(ops)
	low, high := 0, len(sorted)-1
	for low < high {
		middle := (low + high) / 2
		result := porcupine.Ok
		if sorted[middle].Return != never {
			result = judge(ops, sorted[middle].Return, model, deadline)
		} else {
			result = porcupine.Illegal
		}
		switch result {
		case porcupine.Illegal:
			high = middle
		case porcupine.Ok:
			low = middle + 1
		default:
			return fmt.Sprintf("no order of its %d operations explains their results", len(ops))
		}
	}
	culprit := sorted[low]
	text := fmt.Sprintf("no order of the operations explains the result of %v", culprit)
	shown := 0
	for i := low - 1; i >= 0 && shown < shownBefore; i, shown = i-1, shown+1 {
		text += fmt.Sprintf("\n    before: %v", sorted[i])
	}
	return text
}

// shownBefore is the number of operations that are printed in front of one that nothing explains.
const shownBefore = 4
