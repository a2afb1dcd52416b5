package main

import (
	"fmt"
	"sort"
	"sync"
)

// edgeKind says why one transaction is before another one.
type edgeKind int

const (
	// ww: the second one writes behind, or over, what the first one has written.
	ww edgeKind = iota
	// wr: the second one reads what the first one has written.
	wr
	// rw: the second one writes over, or behind, what the first one has read.
	rw
	// rt: the second one was called after the first one had returned.
	rt
)

type edge struct {
	to   int
	kind edgeKind
	at   place
	// What was written or read.
	value string
}

// graph is that of the operations on an object which has transactions: Adya's direct serialization graph, as Elle derives it
// (Kingsbury and Alvaro, VLDB 2020), with real time.
type graph struct {
	object string
	ops    []*Op
	number map[*Op]int
	edges  [][]edge
	// The work of a search for a cycle.
	steps int
	// Keys are judged by several threads.
	lock sync.Mutex
}

// newGraph makes the graph of an object's operations that may have been applied, with the edges of real time.
func newGraph(ops []*Op, object string) *graph {
	g := &graph{object: object, number: map[*Op]int{}}
	for _, op := range ops {
		if op.Object == object && op.Outcome != Failed {
			g.number[op] = len(g.ops)
			g.ops = append(g.ops, op)
		}
	}
	g.edges = make([][]edge, len(g.ops))
	g.addRealTime()
	return g
}

func (g *graph) add(from, to *Op, kind edgeKind, at place, value string) {
	a, isThere := g.number[from]
	b, isThereToo := g.number[to]
	if !isThere || !isThereToo || a == b {
		return
	}
	g.lock.Lock()
	defer g.lock.Unlock()
	g.edges[a] = append(g.edges[a], edge{b, kind, at, value})
}

// addRealTime adds an edge from each operation to those that were called after its return, except where it follows from others: there
// are as many edges for each operation as there are concurrent ones.
func (g *graph) addRealTime() {
	calls, returns := byCall(g.ops), byReturn(g.ops)
	// Those that have returned, and of whose successors none has.
	var frontier []int
	preceded := make([][]int, len(g.ops))
	for _, op := range calls {
		for len(returns) > 0 && returns[0].Return < op.Call {
			done := g.number[returns[0]]
			returns = returns[1:]
			frontier = append(without(frontier, preceded[done]), done)
			preceded[done] = nil
		}
		// Operations of unknown outcome that read only are in no order with what follows, nor do others see them.
		number := g.number[op]
		preceded[number] = append([]int(nil), frontier...)
		for _, before := range frontier {
			g.edges[before] = append(g.edges[before], edge{to: number, kind: rt})
		}
	}
}

func without(list, others []int) []int {
	kept := list[:0]
next:
	for _, number := range list {
		for _, other := range others {
			if number == other {
				continue next
			}
		}
		kept = append(kept, number)
	}
	return kept
}

// addList adds what the order of a list says.
func (g *graph) addList(view *listView) {
	var values []string
	var places []int
	for at, placed := range view.order {
		if placed.by != nil && view.appends[placed.value] != nil {
			values, places = append(values, placed.value), append(places, at)
		}
	}
	writer := func(i int) *Op { return view.appends[values[i]].op }
	for i := 1; i < len(values); i++ {
		g.add(writer(i-1), writer(i), ww, view.at, values[i])
	}
	// Acknowledged values that no read has seen, and of which no place is known, are behind all that were seen.
	var unseen []string
	for _, value := range view.values() {
		if source := view.appends[value]; source.place < 0 && source.op.Outcome == OK {
			unseen = append(unseen, value)
			if len(values) > 0 {
				g.add(writer(len(values)-1), source.op, ww, view.at, value)
			}
		}
	}
	for _, s := range view.sightings {
		length := s.from + len(s.values) - view.ownAtEnd(&s)
		if s.promise != Latest || !s.coversTo {
			continue
		}
		next := sort.SearchInts(places, length)
		if next > 0 {
			g.add(writer(next-1), s.op, wr, view.at, values[next-1])
		}
		if next < len(values) {
			g.add(s.op, view.beyondOwn(values[next:], s.op), rw, view.at, values[next])
			continue
		}
		for _, value := range unseen {
			g.add(s.op, view.appends[value].op, rw, view.at, value)
		}
	}
}

// ownAtEnd returns how many of the last values that were seen are the reader's own.
func (view *listView) ownAtEnd(s *sighting) int {
	own := 0
	for own < len(s.values) && view.appends[s.values[len(s.values)-1-own]].isOf(s.op) {
		own++
	}
	return own
}

func (source *appended) isOf(op *Op) bool {
	return source != nil && source.op == op
}

// beyondOwn returns the operation that appends the first value that is not of `op`; `op` if there is none.
func (view *listView) beyondOwn(values []string, op *Op) *Op {
	for _, value := range values {
		if source := view.appends[value]; source.op != op {
			return source.op
		}
	}
	return op
}

// addRegister adds what the values of a register say.
func (g *graph) addRegister(view *registerView) error {
	for value, writers := range view.writers {
		if len(writers) > 1 || value == nothing {
			return fmt.Errorf("%v: %s is written twice, or is null: where there are transactions, each value of a register has to be a new one", view.at, value)
		}
	}
	readers := map[string][]*Op{}
	for _, seen := range view.seen {
		if seen.promise == Latest {
			readers[seen.value] = append(readers[seen.value], seen.op)
		}
	}
	isWriter := map[*Op]bool{}
	for _, op := range view.written {
		isWriter[op] = true
	}
	isFollower := map[*Op]bool{}
	first := firstAfter(view.written)
	for value, ops := range readers {
		source, _ := view.source(value)
		written := int64(-1 << 62)
		if source != nil {
			written = source.Return
		}
		newer := first(written)
		for _, op := range ops {
			if source != nil {
				g.add(source, op, wr, view.at, value)
			}
			// In a serial order, what an operation writes after it has read a value follows that value at once.
			if isWriter[op] {
				isFollower[op] = true
				if source != nil {
					g.add(source, op, ww, view.at, lastWritten(op, view.at.key))
				}
				for _, other := range ops {
					g.add(other, op, rw, view.at, lastWritten(op, view.at.key))
				}
			}
			// What was called after the value's write had returned replaces it.
			if newer != nil {
				g.add(op, newer, rw, view.at, lastWritten(newer, view.at.key))
			}
		}
	}
	for _, op := range readers[nothing] {
		for _, writer := range view.written {
			if !isFollower[writer] {
				g.add(op, writer, rw, view.at, lastWritten(writer, view.at.key))
			}
		}
	}
	return nil
}
