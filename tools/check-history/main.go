// check-history judges histories of operations on registers, lists and transactions: docs/history-format.md states the format, and
// what is checked.
package main

import (
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"
)

// Exit statuses; that of several files is the greatest.
const (
	exitGood      = 0
	exitUndecided = 1
	exitUnusable  = 2
	exitViolated  = 3
)

const usage = `check-history [-limit TIME] [-at-least N] FILE...

Judges histories: registers, compare-and-set and lists for linearizability (Porcupine), transactions for strict serializability (the
cycles of Elle), and reads that promise less for what they promise. docs/history-format.md states the format.

Exit status: 0 nothing is wrong; 1 something was not decided within its time; 2 a file cannot be judged (it is malformed, truncated, or
too little in it has succeeded); 3 a promise was violated.
`

// shownFaultsMax is the number of faults that are printed.
const shownFaultsMax = 20

func main() {
	limit := flag.Duration("limit", time.Minute, "the time for the search over one key")
	least := flag.Int("at-least", 1, "how many operations of each kind that was called have to have succeeded")
	flag.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(exitUnusable)
	}
	status := exitGood
	for _, path := range flag.Args() {
		if code := judgeFile(path, *limit, *least); code > status {
			status = code
		}
	}
	os.Exit(status)
}

func judgeFile(path string, limit time.Duration, least int) int {
	unusable := func(err error) int {
		fmt.Printf("%s: CANNOT BE JUDGED: %v\n", path, err)
		return exitUnusable
	}
	file, err := os.Open(path)
	if err != nil {
		return unusable(err)
	}
	defer file.Close()
	history, err := Read(file)
	if err != nil {
		return unusable(err)
	}
	summary, err := count(history, least)
	fmt.Printf("%s: %s\n", path, summary)
	if err != nil {
		return unusable(err)
	}
	verdict, err := Judge(history, limit)
	if err != nil {
		return unusable(err)
	}
	for i, fault := range verdict.Faults {
		if i == shownFaultsMax {
			fmt.Printf("  and %d more\n", len(verdict.Faults)-i)
			break
		}
		fmt.Printf("  %s: %s\n", fault.Class, fault.Text)
	}
	for _, text := range verdict.Undecided {
		fmt.Printf("  NOT DECIDED: %s\n", text)
	}
	switch {
	case len(verdict.Faults) > 0:
		fmt.Printf("%s: A PROMISE WAS VIOLATED\n", path)
		return exitViolated
	case len(verdict.Undecided) > 0:
		fmt.Printf("%s: NOT DECIDED\n", path)
		return exitUndecided
	}
	fmt.Printf("%s: nothing is wrong\n", path)
	return exitGood
}

// count says how many operations of each kind there are. It fails if fewer than `least` of one have succeeded.
func count(history *History, least int) (string, error) {
	called, succeeded, unknown := map[string]int{}, map[string]int{}, map[string]int{}
	objects := map[place]bool{}
	clients := map[string]bool{}
	for _, op := range history.Ops {
		kind := kindOf(op)
		called[kind]++
		switch op.Outcome {
		case OK:
			succeeded[kind]++
		case Unknown:
			unknown[kind]++
		}
		clients[op.Client] = true
		for _, key := range keys(op) {
			objects[place{op.Object, key}] = true
		}
	}
	var kinds, parts []string
	for kind := range called {
		kinds = append(kinds, kind)
	}
	sort.Strings(kinds)
	var err error
	if len(kinds) == 0 {
		err = fmt.Errorf("it has no operations")
	}
	for _, kind := range kinds {
		parts = append(parts, fmt.Sprintf("%d %s (%d ok, %d unknown)", called[kind], kind, succeeded[kind], unknown[kind]))
		if succeeded[kind] < least && err == nil {
			err = fmt.Errorf("of %d operations %q, %d have succeeded; at least %d have to, so that they say something", called[kind], kind, succeeded[kind], least)
		}
	}
	text := fmt.Sprintf("%d operations of %d clients on %d keys: %s", len(history.Ops), len(clients), len(objects), strings.Join(parts, ", "))
	if history.IsCut {
		text += "; the file is cut, as its first line allows"
	}
	return text, err
}

// kindOf names a kind of operation, with what a read promises.
func kindOf(op *Op) string {
	if op.IsTxn {
		return "txn"
	}
	step := &op.Steps[0]
	return step.Kind + [...]string{"", "-session", "-past"}[step.Promise]
}
