package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var someOps = []made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 10, 19, lists("l"), "[1]"), ok("a", 20, 29, appends("l", 2), "1")}

// statusOf writes a file and judges it; returns the exit status.
func statusOf(t *testing.T, text string, limit time.Duration) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return judgeFile(path, limit, 1)
}

// Wherever a file is truncated, it does not pass, unless its first line says that this may happen.
func TestTruncatedFilesCannotBeJudged(t *testing.T) {
	whole := file(someOps)
	if status := statusOf(t, whole, time.Minute); status != exitGood {
		t.Fatalf("the whole file: %d", status)
	}
	for end := 0; end < len(whole)-1; end++ {
		if _, err := Read(strings.NewReader(whole[:end])); err == nil {
			t.Errorf("it is read without what is behind %q", whole[:end])
		}
	}
}

// A file that may be cut is judged up to its last whole line: an append whose return is lost may have been applied.
func TestFilesMayBeCutIfTheySaySo(t *testing.T) {
	mayBeCut := strings.Replace(file(someOps), `"clock"`, `"may_be_cut":true,"clock"`, 1)
	first := strings.Index(mayBeCut, "\n") + 1
	for end := first; end < len(mayBeCut); end++ {
		history, err := Read(strings.NewReader(mayBeCut[:end]))
		if err != nil {
			t.Fatalf("cut behind %q: %v", mayBeCut[:end], err)
		}
		if isCut := end < len(mayBeCut); history.IsCut != isCut {
			t.Errorf("cut: %v behind %q", history.IsCut, mayBeCut[:end])
		}
		verdict, err := Judge(history, time.Minute)
		if err != nil || len(verdict.Faults) > 0 {
			t.Errorf("cut behind %q: %v, %v", mayBeCut[:end], verdict, err)
		}
	}
	lines := strings.SplitAfter(mayBeCut, "\n")
	for torn := 1; torn < len(lines)-2; torn++ {
		kept := append([]string(nil), lines...)
		kept[torn] = kept[torn][:len(kept[torn])/2] + "\n"
		if _, err := Read(strings.NewReader(strings.Join(kept, ""))); err == nil {
			t.Errorf("line %d is torn, in the middle of the file", torn+1)
		}
	}
}

// A missing, doubled or swapped line is found, and so is each other form that the format does not have.
func TestWhatIsNoHistoryIsRefused(t *testing.T) {
	lines := strings.SplitAfter(file(someOps), "\n")
	lines = lines[:len(lines)-1]
	for at := 0; at < len(lines); at++ {
		without := append(append([]string(nil), lines[:at]...), lines[at+1:]...)
		twice := append(append([]string(nil), lines[:at+1]...), lines[at:]...)
		for _, changed := range [][]string{without, twice} {
			if _, err := Read(strings.NewReader(strings.Join(changed, ""))); err == nil {
				t.Errorf("it is read without, or with a second, line %d", at+1)
			}
		}
	}
	whole := file(someOps)
	for _, change := range []struct{ from, to string }{
		{`"version":1`, `"version":2`},
		{`"squall-history"`, `"other"`},
		{`"kind":"list"`, `"kind":"pop"`},
		{`"kind":"list"`, `"kind":"list","promise":"soon"`},
		{`"kind":"list"`, `"kind":"list","colour":1`},
		{`"kind":"list"`, `"kind":"list","from":3,"to":1`},
		{`"outcome":"ok"`, `"outcome":"perhaps"`},
		{`"result":[1]`, `"result":1`},
		{`"result":[1]`, `"result":null`},
		{`"result":0`, `"result":-1`},
		{`"return":19`, `"return":5`},
		{`"op":1,"return"`, `"op":7,"return"`},
		{`"op":1,"return"`, `"op":0,"return"`},
		{`"op":1,"client"`, `"op":0,"client"`},
		{`"client":"b"`, `"client":""`},
		{`"call":10,`, ``},
		{`,"value":2`, ``},
		{`,"value":2`, `,"value":[2]`},
		{`"calls":3`, `"calls":2`},
		{`"end":true,`, `"end":true,"end":false,`},
	} {
		if !strings.Contains(whole, change.from) {
			t.Fatalf("there is no %s", change.from)
		}
		if _, err := Read(strings.NewReader(strings.Replace(whole, change.from, change.to, 1))); err == nil {
			t.Errorf("%s is read", change.to)
		}
	}
	if _, err := Read(strings.NewReader(whole + "{}\n")); err == nil {
		t.Error("there may be nothing behind the end")
	}
}

// What cannot be judged, or says too little, has a status of its own.
func TestExitStatuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		text   string
		status int
	}{
		{"a correct history", file(someOps), exitGood},
		{"an empty file", "", exitUnusable},
		{"a history without operations", file(nil), exitUnusable},
		{"a history in which nothing has succeeded", file([]made{failed("a", 0, 9, appends("l", 1)), open("b", 0, appends("l", 2))}), exitUnusable},
		{"a history in which no read has succeeded", file([]made{ok("a", 0, 9, appends("l", 1), "0"), open("b", 0, lists("l"))}), exitUnusable},
		{"values that are appended twice", file([]made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 0, 9, appends("l", 1), "1")}), exitUnusable},
		{"a key of two kinds", file([]made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 0, 9, writes("l", 1), "")}), exitUnusable},
		{"values of transactions that are written twice", file([]made{ok("a", 0, 9, txn(writes("x", 1)), "[null]"), ok("b", 0, 9, txn(writes("x", 1)), "[null]")}), exitUnusable},
		{"a history that is wrong", file([]made{ok("a", 0, 9, appends("l", 1), "0"), ok("b", 10, 19, lists("l"), "[]")}), exitViolated},
		{"keys of one name in two objects", file([]made{ok("a", 0, 9, `"object":"one",`+appends("x", 1), "0"), ok("b", 10, 19, `"object":"other",`+writes("x", 1), ""), ok("b", 20, 29, `"object":"one",`+lists("x"), "[1]")}), exitGood},
	} {
		if status := statusOf(t, test.text, time.Minute); status != test.status {
			t.Errorf("%s: %d instead of %d", test.name, status, test.status)
		}
	}
	if status := statusOf(t, file(someOps), time.Nanosecond); status != exitUndecided {
		t.Errorf("without time: %d", status)
	}
}

// The example of the page that states the format is a history.
func TestTheExampleOfThePageIsAHistory(t *testing.T) {
	page, err := os.ReadFile("../../docs/history-format.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, isThere := strings.Cut(string(page), "```json\n")
	example, _, _ := strings.Cut(rest, "```")
	if !isThere || statusOf(t, strings.Replace(example, `"outcome":"unknown"`, `"outcome":"ok","result":true`, 1), time.Minute) != exitGood {
		t.Error("the example, with a `cas` that has succeeded, is not judged as correct")
	}
	if _, err := Read(strings.NewReader(example)); err != nil {
		t.Error(err)
	}
}
