package main

import (
	"fmt"
	"sort"
	"strings"
)

// Fault is a violation: its class, and what has happened in words.
type Fault struct {
	Class string
	Text  string
}

// Verdict is what is known about a history.
type Verdict struct {
	Faults []Fault
	// What was not decided within its time.
	Undecided []string
}

func (v *Verdict) fault(class, format string, arguments ...interface{}) {
	v.Faults = append(v.Faults, Fault{class, fmt.Sprintf(format, arguments...)})
}

// place names a key of an object.
type place struct{ object, key string }

func (p place) String() string {
	if p.object == "" {
		return fmt.Sprintf("key %q", p.key)
	}
	return fmt.Sprintf("key %q of %q", p.key, p.object)
}

// String describes an operation in words.
func (op *Op) String() string {
	steps := make([]string, len(op.Steps))
	for i := range op.Steps {
		steps[i] = op.Steps[i].describe(op.Outcome)
	}
	what := strings.Join(steps, ", ")
	if op.IsTxn {
		what = "transaction (" + what + ")"
	}
	switch {
	case op.Outcome == OK:
		return fmt.Sprintf("operation %d of %s, %d to %d ns: %s", op.ID, op.Client, op.Call, op.Return, what)
	case op.Outcome == Failed:
		return fmt.Sprintf("operation %d of %s, called at %d ns and failed: %s", op.ID, op.Client, op.Call, what)
	default:
		return fmt.Sprintf("operation %d of %s, called at %d ns, of unknown outcome: %s", op.ID, op.Client, op.Call, what)
	}
}

func (step *Step) describe(outcome Outcome) string {
	result := ""
	if outcome == OK {
		result = " = " + step.describeResult()
	}
	switch step.Kind {
	case "cas":
		return fmt.Sprintf("cas %q from %s to %s%s", step.Key, step.Expected, step.Value, result)
	case "append", "write":
		return fmt.Sprintf("%s %s to %q%s", step.Kind, step.Value, step.Key, strings.TrimSuffix(result, " = "))
	default:
		asked := ""
		if step.Promise != Latest {
			asked = [...]string{"", " (session)", " (past)"}[step.Promise]
		}
		if step.From > 0 || step.To > 0 {
			asked += fmt.Sprintf(" from place %d", step.From)
		}
		return fmt.Sprintf("%s %q%s%s", step.Kind, step.Key, asked, result)
	}
}

func (step *Step) describeResult() string {
	result := &step.Result
	switch {
	case result.List != nil:
		return shortened(result.List)
	case step.Kind == "read":
		return result.Value
	case step.Kind == "cas":
		return fmt.Sprint(result.Written)
	case result.Place >= 0:
		return fmt.Sprintf("place %d", result.Place)
	}
	return ""
}

// shownMax is the number of elements that are printed of a list.
const shownMax = 12

func shortened(list []string) string {
	if len(list) <= shownMax {
		return "[" + strings.Join(list, " ") + "]"
	}
	return fmt.Sprintf("[%d values, the last: %s]", len(list), strings.Join(list[len(list)-shownMax:], " "))
}

// byReturn sorts operations by the time of their return; those that did not return come last.
func byReturn(ops []*Op) []*Op {
	sorted := append([]*Op(nil), ops...)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].Return < sorted[j].Return })
	return sorted
}

// byCall sorts operations by the time of their call.
func byCall(ops []*Op) []*Op {
	sorted := append([]*Op(nil), ops...)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].Call < sorted[j].Call })
	return sorted
}
