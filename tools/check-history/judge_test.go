package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// made is an operation of a history that a test makes: what is called, and how it returns.
type made struct {
	client          string
	called, return_ int64
	step            string
	outcome         string
	result          string
	// The results of its steps, in a history that is made at random.
	parts []string
}

func ok(client string, called, returned int64, step, result string) made {
	return made{client: client, called: called, return_: returned, step: step, outcome: "ok", result: result}
}

func failed(client string, called, returned int64, step string) made {
	return made{client: client, called: called, return_: returned, step: step, outcome: "fail"}
}

// open is an operation that never returned.
func open(client string, called int64, step string) made {
	return made{client: client, called: called, step: step}
}

func appends(key string, value int) string {
	return fmt.Sprintf(`"kind":"append","key":%q,"value":%d`, key, value)
}

func lists(key string) string {
	return fmt.Sprintf(`"kind":"list","key":%q`, key)
}

func writes(key string, value int) string {
	return fmt.Sprintf(`"kind":"write","key":%q,"value":%d`, key, value)
}

func reads(key string) string {
	return fmt.Sprintf(`"kind":"read","key":%q`, key)
}

func swaps(key string, expected, value int) string {
	return fmt.Sprintf(`"kind":"cas","key":%q,"expected":%d,"value":%d`, key, expected, value)
}

func txn(steps ...string) string {
	return `"kind":"txn","steps":[{` + strings.Join(steps, "},{") + `}]`
}

const head = `{"format":"squall-history","version":1,"clock":"test"`

// body returns the lines of a history between the first one and the `end` line.
func body(ops []made) []string {
	var lines []string
	add := func(format string, arguments ...interface{}) {
		lines = append(lines, fmt.Sprintf(`{"line":%d,`, len(lines)+2)+fmt.Sprintf(format, arguments...)+"}")
	}
	for i, op := range ops {
		add(`"op":%d,"client":%q,"call":%d,%s`, i, op.client, op.called, op.step)
		if op.outcome == "" {
			continue
		}
		result := ""
		if op.result != "" {
			result = `,"result":` + op.result
		}
		add(`"op":%d,"return":%d,"outcome":%q%s`, i, op.return_, op.outcome, result)
	}
	return lines
}

// file returns the text of a whole history.
func file(ops []made) string {
	lines := body(ops)
	end := fmt.Sprintf(`{"line":%d,"end":true,"calls":%d}`, len(lines)+2, len(ops))
	return head + "}\n" + strings.Join(append(lines, end), "\n") + "\n"
}

// judged returns the verdict on a history.
func judged(t testing.TB, ops []made) *Verdict {
	t.Helper()
	history, err := Read(strings.NewReader(file(ops)))
	if err != nil {
		t.Fatalf("%v in\n%s", err, file(ops))
	}
	verdict, err := Judge(history, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if len(verdict.Undecided) > 0 {
		t.Fatalf("not decided: %v", verdict.Undecided)
	}
	return verdict
}

// falsified is a correct history, and one in which something was changed.
type falsified struct {
	name, class    string
	correct, wrong []made
}

var falsifiedHistories = []falsified{
	{"a stale read of a register", "stale-read",
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, writes("r", 2), ""), ok("b", 20, 29, reads("r"), "2"), ok("b", 30, 39, reads("r"), "2")},
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, writes("r", 2), ""), ok("b", 20, 29, reads("r"), "2"), ok("b", 30, 39, reads("r"), "1")}},
	{"a stale read of a list", "stale-read",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 15, 29, lists("l"), "[1]"), ok("b", 30, 39, lists("l"), "[1,2]")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 15, 29, lists("l"), "[1,2]"), ok("b", 30, 39, lists("l"), "[1]")}},
	{"a lost write", "lost-write",
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, writes("r", 2), ""), ok("b", 20, 29, reads("r"), "2")},
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, writes("r", 2), ""), ok("b", 20, 29, reads("r"), "1")}},
	{"an append that was applied twice", "duplicate",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l"), "[1,2]")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l"), "[1,2,1]")}},
	{"an append that was applied twice, as later places show", "duplicate",
		[]made{open("c", 0, appends("l", 9)), ok("b", 5, 8, lists("l"), "[9]"), ok("a", 10, 19, appends("l", 1), "1"), ok("b", 20, 29, lists("l"), "[9,1]")},
		[]made{open("c", 0, appends("l", 9)), ok("b", 5, 8, lists("l"), "[9]"), ok("a", 10, 19, appends("l", 1), "2"), ok("b", 20, 29, lists("l"), "[9,9,1]")}},
	{"a write that was applied twice", "not-linearizable",
		// The first write returns late, so it may be the last one; but it cannot be both.
		[]made{ok("a", 0, 99, writes("r", 1), ""), ok("b", 10, 19, writes("r", 2), ""), ok("c", 20, 29, reads("r"), "2"), ok("c", 30, 39, reads("r"), "1")},
		[]made{ok("a", 0, 99, writes("r", 1), ""), ok("c", 5, 8, reads("r"), "1"), ok("b", 10, 19, writes("r", 2), ""), ok("c", 20, 29, reads("r"), "2"), ok("c", 30, 39, reads("r"), "1")}},
	{"a write skew", "G2",
		[]made{ok("a", 0, 9, txn(lists("x"), lists("y"), appends("x", 1)), "[[],[],null]"), ok("b", 1, 8, txn(lists("x"), lists("y"), appends("y", 2)), "[[1],[],null]"), ok("c", 10, 20, txn(lists("x"), lists("y")), "[[1],[2]]")},
		[]made{ok("a", 0, 9, txn(lists("x"), lists("y"), appends("x", 1)), "[[],[],null]"), ok("b", 1, 8, txn(lists("x"), lists("y"), appends("y", 2)), "[[],[],null]"), ok("c", 10, 20, txn(lists("x"), lists("y")), "[[1],[2]]")}},
	{"a write skew of registers", "G2",
		[]made{ok("a", 0, 9, txn(reads("x"), reads("y"), writes("x", 1)), "[null,null,null]"), ok("b", 1, 8, txn(reads("x"), reads("y"), writes("y", 2)), "[1,null,null]")},
		[]made{ok("a", 0, 9, txn(reads("x"), reads("y"), writes("x", 1)), "[null,null,null]"), ok("b", 1, 8, txn(reads("x"), reads("y"), writes("y", 2)), "[null,null,null]")}},
	{"a lost update", "lost-update",
		[]made{ok("a", 0, 9, txn(reads("x"), writes("x", 1)), "[null,null]"), ok("b", 1, 8, txn(reads("x"), writes("x", 2)), "[1,null]")},
		[]made{ok("a", 0, 9, txn(reads("x"), writes("x", 1)), "[null,null]"), ok("b", 1, 8, txn(reads("x"), writes("x", 2)), "[null,null]")}},
	{"a read of a failed append", "G1a",
		[]made{failed("a", 0, 9, appends("l", 1)), ok("b", 10, 19, lists("l"), "[]")},
		[]made{failed("a", 0, 9, appends("l", 1)), ok("b", 10, 19, lists("l"), "[1]")}},
	{"a read of a failed transaction's write", "G1a",
		[]made{failed("a", 0, 9, txn(writes("x", 1), writes("y", 1))), ok("b", 10, 19, txn(reads("x")), "[null]")},
		[]made{failed("a", 0, 9, txn(writes("x", 1), writes("y", 1))), ok("b", 10, 19, txn(reads("x")), "[1]")}},
	{"an intermediate read", "G1b",
		[]made{ok("a", 0, 9, txn(appends("x", 1), appends("x", 2)), "[null,null]"), ok("b", 5, 19, txn(lists("x")), "[[1,2]]")},
		[]made{ok("a", 0, 9, txn(appends("x", 1), appends("x", 2)), "[null,null]"), ok("b", 5, 19, txn(lists("x")), "[[1]]")}},
	{"an intermediate read of a register", "G1b",
		[]made{ok("a", 0, 9, txn(writes("x", 1), writes("x", 2)), "[null,null]"), ok("b", 5, 19, txn(reads("x")), "[2]")},
		[]made{ok("a", 0, 9, txn(writes("x", 1), writes("x", 2)), "[null,null]"), ok("b", 5, 19, txn(reads("x")), "[1]")}},
	{"a transaction that does not see its own write", "internal",
		[]made{ok("a", 0, 9, txn(writes("x", 1), reads("x")), "[null,1]")},
		[]made{ok("a", 0, 9, txn(writes("x", 1), reads("x")), "[null,null]")}},
	{"a lost append", "lost-append",
		[]made{ok("a", 0, 9, appends("l", 1), ""), ok("a", 10, 19, appends("l", 2), ""), ok("b", 20, 29, lists("l"), "[1,2]")},
		[]made{ok("a", 0, 9, appends("l", 1), ""), ok("a", 10, 19, appends("l", 2), ""), ok("b", 20, 29, lists("l"), "[1]")}},
	{"a lost append whose place was returned", "lost-append",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l"), "[1,2]")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l"), "[1]")}},
	{"two readers with different orders", "incompatible-order",
		[]made{ok("a", 0, 9, appends("l", 1), ""), ok("b", 0, 9, appends("l", 2), ""), ok("c", 0, 9, lists("l"), "[1]"), ok("d", 10, 19, lists("l"), "[1,2]")},
		[]made{ok("a", 0, 9, appends("l", 1), ""), ok("b", 0, 9, appends("l", 2), ""), ok("c", 0, 9, lists("l"), "[1]"), ok("d", 10, 19, lists("l"), "[2,1]")}},
	{"two appends at one place", "incompatible-order",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 0, 9, appends("l", 2), "1")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 0, 9, appends("l", 2), "0")}},
	{"an append in front of an earlier one", "order-inversion",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 10, 19, appends("l", 2), "1")},
		[]made{ok("a", 0, 9, appends("l", 1), "1"), ok("b", 10, 19, appends("l", 2), "0")}},
	{"a hole in a list", "not-linearizable",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 10, 19, appends("l", 2), "1")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 10, 19, appends("l", 2), "2")}},
	{"time against the order of transactions", "G-single-realtime",
		// The reader sees the later transaction, and not the earlier one, which writes to another key.
		[]made{ok("a", 0, 9, txn(appends("x", 1)), "[null]"), ok("b", 5, 19, txn(appends("y", 2)), "[null]"), ok("c", 8, 29, txn(lists("x"), lists("y")), "[[],[2]]"), ok("d", 30, 39, txn(lists("x")), "[[1]]")},
		[]made{ok("a", 0, 9, txn(appends("x", 1)), "[null]"), ok("b", 10, 19, txn(appends("y", 2)), "[null]"), ok("c", 8, 29, txn(lists("x"), lists("y")), "[[],[2]]"), ok("d", 30, 39, txn(lists("x")), "[[1]]")}},
	{"time against the order of transactions on registers", "G-single-realtime",
		[]made{ok("a", 0, 9, txn(writes("x", 1)), "[null]"), ok("b", 5, 19, txn(writes("y", 2)), "[null]"), ok("c", 8, 29, txn(reads("x"), reads("y")), "[null,2]")},
		[]made{ok("a", 0, 9, txn(writes("x", 1)), "[null]"), ok("b", 10, 19, txn(writes("y", 2)), "[null]"), ok("c", 8, 29, txn(reads("x"), reads("y")), "[null,2]")}},
	{"writes in no order", "G0",
		[]made{ok("a", 0, 9, txn(appends("x", 1), appends("y", 1)), "[null,null]"), ok("b", 0, 9, txn(appends("x", 2), appends("y", 2)), "[null,null]"), ok("c", 10, 19, txn(lists("x"), lists("y")), "[[1,2],[1,2]]")},
		[]made{ok("a", 0, 9, txn(appends("x", 1), appends("y", 1)), "[null,null]"), ok("b", 0, 9, txn(appends("x", 2), appends("y", 2)), "[null,null]"), ok("c", 10, 19, txn(lists("x"), lists("y")), "[[1,2],[2,1]]")}},
	{"information in a circle", "G1c",
		[]made{ok("a", 0, 9, txn(appends("x", 1), lists("y")), "[null,[]]"), ok("b", 0, 9, txn(appends("y", 1), lists("x")), "[null,[1]]")},
		[]made{ok("a", 0, 9, txn(appends("x", 1), lists("y")), "[null,[1]]"), ok("b", 0, 9, txn(appends("y", 1), lists("x")), "[null,[1]]")}},
	{"half of a transaction", "G-single",
		[]made{ok("a", 0, 9, txn(appends("x", 1), appends("y", 1)), "[null,null]"), ok("b", 0, 9, txn(lists("x"), lists("y")), "[[1],[1]]"), ok("c", 10, 19, txn(lists("y")), "[[1]]")},
		[]made{ok("a", 0, 9, txn(appends("x", 1), appends("y", 1)), "[null,null]"), ok("b", 0, 9, txn(lists("x"), lists("y")), "[[1],[]]"), ok("c", 10, 19, txn(lists("y")), "[[1]]")}},
	{"a transaction that does not see its own append", "internal",
		[]made{ok("a", 0, 9, txn(appends("x", 1), lists("x")), "[null,[1]]")},
		[]made{ok("a", 0, 9, txn(appends("x", 1), lists("x")), "[null,[]]")}},
	{"a cas that succeeds twice from one value", "cas-twice",
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, swaps("r", 1, 2), "true"), ok("b", 10, 19, swaps("r", 1, 3), "false")},
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, swaps("r", 1, 2), "true"), ok("b", 10, 19, swaps("r", 1, 3), "true")}},
	{"a cas that is refused without a reason", "not-linearizable",
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, swaps("r", 5, 2), "false")},
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, swaps("r", 1, 2), "false")}},
	{"a value from nowhere", "garbage-read",
		[]made{ok("a", 0, 9, reads("r"), "null")},
		[]made{ok("a", 0, 9, reads("r"), "7")}},
	{"a value from the future", "future-read",
		[]made{ok("a", 0, 9, lists("l"), "[]"), ok("b", 10, 19, appends("l", 1), "")},
		[]made{ok("a", 0, 9, lists("l"), "[1]"), ok("b", 10, 19, appends("l", 1), "")}},
	{"a session that goes back", "session",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l")+`,"promise":"session"`, "[1]"), ok("b", 30, 39, lists("l")+`,"promise":"session"`, "[1]")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l")+`,"promise":"session"`, "[1,2]"), ok("b", 30, 39, lists("l")+`,"promise":"session"`, "[1]")}},
	{"a session that goes back in a register", "session",
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, writes("r", 2), ""), ok("b", 20, 29, reads("r")+`,"promise":"session"`, "1"), ok("b", 30, 39, reads("r")+`,"promise":"session"`, "2")},
		[]made{ok("a", 0, 9, writes("r", 1), ""), ok("a", 10, 19, writes("r", 2), ""), ok("b", 20, 29, reads("r")+`,"promise":"session"`, "2"), ok("b", 30, 39, reads("r")+`,"promise":"session"`, "1")}},
	{"a past state in another order", "incompatible-order",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l")+`,"promise":"past"`, "[1]")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l")+`,"promise":"past"`, "[2]")}},
	{"a page of a list at another place", "duplicate",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l")+`,"from":1,"to":2`, "[2]")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l")+`,"from":1,"to":2`, "[1]")}},
	{"an empty page behind a list that was longer", "stale-read",
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l")+`,"from":2`, "[]")},
		[]made{ok("a", 0, 9, appends("l", 1), "0"), ok("a", 10, 19, appends("l", 2), "1"), ok("b", 20, 29, lists("l")+`,"from":1`, "[]")}},
}

// Each history that was falsified has a fault of its class, and the one that was not has none.
func TestFalsifiedHistoriesAreFound(t *testing.T) {
	for _, test := range falsifiedHistories {
		t.Run(test.name, func(t *testing.T) {
			if verdict := judged(t, test.correct); len(verdict.Faults) > 0 {
				t.Errorf("the correct history: %v", verdict.Faults)
			}
			verdict := judged(t, test.wrong)
			classes := ""
			for _, fault := range verdict.Faults {
				if fault.Class == test.class {
					t.Logf("%s: %s", fault.Class, fault.Text)
					return
				}
				classes += fault.Class + ": " + fault.Text + "\n"
			}
			t.Errorf("no %s; what was found: %s", test.class, classes)
		})
	}
}

// What may or may not have been applied, at any later time, is no fault either way.
func TestUnknownOutcomesMayBeBoth(t *testing.T) {
	for _, result := range []string{"[]", "[1]"} {
		ops := []made{open("a", 0, appends("l", 1)), ok("b", 10, 19, lists("l"), result), ok("b", 20, 29, lists("l"), "[1]")}
		if verdict := judged(t, ops); len(verdict.Faults) > 0 {
			t.Errorf("%s: %v", result, verdict.Faults)
		}
	}
	for _, result := range []string{"[null]", "[1]"} {
		ops := []made{open("a", 0, txn(writes("x", 1))), ok("b", 10, 19, txn(reads("x")), result), ok("b", 20, 29, txn(reads("x")), "[1]")}
		if verdict := judged(t, ops); len(verdict.Faults) > 0 {
			t.Errorf("%s: %v", result, verdict.Faults)
		}
	}
	ops := []made{open("a", 0, appends("l", 1)), ok("b", 10, 19, lists("l"), "[1]"), ok("b", 20, 29, lists("l"), "[]")}
	if verdict := judged(t, ops); len(verdict.Faults) == 0 {
		t.Error("what was seen cannot vanish")
	}
}

// The smallest cycle is printed with its operations.
func TestCyclesAreDescribedInWords(t *testing.T) {
	for _, test := range falsifiedHistories {
		if test.name == "a write skew" {
			text := judged(t, test.wrong).Faults[0].Text
			for _, part := range []string{"2 operations in a cycle", "operation 0 of a", "operation 1 of b", `whose 2 in key "y" it does not see`} {
				if !strings.Contains(text, part) {
					t.Errorf("%q is missing in %s", part, text)
				}
			}
		}
	}
}

// A search that takes too long is not decided, whatever it might have found.
func TestTimeIsLimited(t *testing.T) {
	var ops []made
	for i := 0; i < 60; i++ {
		ops = append(ops, ok(fmt.Sprint(i), 0, 1000, writes("r", i), ""))
	}
	// No order explains this, and 60 concurrent writes have many.
	ops = append(ops, ok("x", 2000, 2001, swaps("r", 70, 71), "false"), ok("x", 2002, 2003, swaps("r", 1, 2), "false"), ok("x", 2004, 2005, reads("r"), "1"))
	history, err := Read(strings.NewReader(file(ops)))
	if err != nil {
		t.Fatal(err)
	}
	verdict, err := Judge(history, 50*time.Millisecond)
	if err != nil || len(verdict.Undecided) != 1 || len(verdict.Faults) > 0 {
		t.Errorf("%v, %v", verdict, err)
	}
}
