package main

import (
	"fmt"
	"strings"
)

// cycleClass is a class of anomalies: the kinds of edges of its cycles.
type cycleClass struct {
	name string
	// The kinds that a cycle may have, one bit each.
	kinds int
	// Whether it has exactly one rw edge beside them.
	hasOneRW bool
	meaning  string
}

// classes are Adya's in the order in which they are looked for, then those with real time.
var classes = []cycleClass{
	{"G0", 1 << ww, false, "writes are in no order"},
	{"G1c", 1<<ww | 1<<wr, false, "information flows in a circle"},
	{"G-single", 1<<ww | 1<<wr, true, "a transaction sees another one in part, or does not see what it depends on"},
	{"G2", 1<<ww | 1<<wr | 1<<rw, false, "transactions do not see each other's writes, as in a write skew"},
	{"G0-realtime", 1<<ww | 1<<rt, false, "writes are in another order than time"},
	{"G1c-realtime", 1<<ww | 1<<wr | 1<<rt, false, "information flows against time"},
	{"G-single-realtime", 1<<ww | 1<<wr | 1<<rt, true, "a transaction does not see what had returned before its call"},
	{"G2-realtime", 1<<ww | 1<<wr | 1<<rw | 1<<rt, false, "no serial order agrees with time"},
}

// stepsMax bounds the search for the smallest cycle of a class in one component: then the smallest that was found is reported. Some cycle
// of some class is always found, since each node of a component is in one.
const stepsMax = 20_000_000

// check finds cycles, and reports the smallest of the most basic class in each component.
func (g *graph) check(verdict *Verdict) {
	all := make([]int, len(g.ops))
	for i := range all {
		all[i] = i
	}
	component := make([]int, len(g.ops))
	for _, nodes := range g.components(all, 1<<ww|1<<wr|1<<rw|1<<rt, component) {
		for i := range classes {
			if cycle := g.cycle(nodes, &classes[i]); cycle != nil {
				// Where time is a shorter way, the cycle may be one of a simpler class.
				class := classOf(cycle)
				verdict.fault(class.name, "%s", g.describe(cycle, class))
				break
			}
		}
	}
}

// arc is an edge with its beginning.
type arc struct {
	from int
	edge edge
}

// cycle returns the shortest cycle of a class that was found among the nodes of a component.
func (g *graph) cycle(nodes []int, class *cycleClass) []arc {
	var shortest []arc
	g.steps = 0
	inside := make([]int, len(g.ops))
	for i := range inside {
		inside[i] = -1
	}
	if class.hasOneRW {
		for _, node := range nodes {
			inside[node] = 0
		}
		for _, node := range nodes {
			for _, e := range g.edges[node] {
				if e.kind != rw || inside[e.to] != 0 || g.steps > stepsMax {
					continue
				}
				path := g.path(e.to, node, class.kinds, inside)
				if path == nil {
					continue
				}
				cycle := append([]arc{{node, e}}, path...)
				if class.kinds&(1<<rt) != 0 {
					cycle = g.shortened(cycle)
				}
				if shortest == nil || len(cycle) < len(shortest) {
					shortest = cycle
				}
			}
		}
		return shortest
	}
	for _, part := range g.components(nodes, class.kinds, inside) {
		for _, node := range part {
			for _, e := range g.edges[node] {
				if 1<<e.kind&class.kinds == 0 || inside[e.to] != inside[node] || g.steps > stepsMax {
					continue
				}
				path := g.path(e.to, node, class.kinds, inside)
				if path == nil {
					continue
				}
				cycle := append([]arc{{node, e}}, path...)
				if class.kinds&(1<<rt) != 0 {
					cycle = g.shortened(cycle)
				}
				if shortest == nil || len(cycle) < len(shortest) {
					shortest = cycle
				}
			}
		}
	}
	return shortest
}

// shortened replaces parts of a cycle behind its first edge by edges of real time, of which the graph has only those that do not follow from
// others.
func (g *graph) shortened(cycle []arc) []arc {
	short := cycle[:1:1]
	for at := 1; at < len(cycle); {
		node, next := cycle[at].from, at+1
		for later := len(cycle); later > next; later-- {
			if g.ops[node].Return < g.ops[cycle[later%len(cycle)].from].Call {
				next = later
				break
			}
		}
		step := cycle[at]
		if next > at+1 {
			step = arc{node, edge{to: cycle[next%len(cycle)].from, kind: rt}}
		}
		short, at = append(short, step), next
	}
	return short
}

// classOf returns the first class that a cycle is in.
func classOf(cycle []arc) *cycleClass {
	kinds, writesOver := 0, 0
	for _, arc := range cycle {
		kinds |= 1 << arc.edge.kind
		if arc.edge.kind == rw {
			writesOver++
		}
	}
	for i := range classes {
		class := &classes[i]
		if class.hasOneRW && writesOver == 1 && kinds&^(class.kinds|1<<rw) == 0 || !class.hasOneRW && kinds&^class.kinds == 0 {
			return class
		}
	}
	panic("the last class has all kinds")
}

// path returns a shortest path by edges of these kinds inside a component; nil if there is none.
func (g *graph) path(from, to, kinds int, inside []int) []arc {
	by := map[int]arc{}
	queue := []int{from}
	for len(queue) > 0 {
		node := queue[0]
		queue = queue[1:]
		for _, e := range g.edges[node] {
			g.steps++
			_, isKnown := by[e.to]
			if 1<<e.kind&kinds == 0 || isKnown || e.to == from || inside[e.to] != inside[from] {
				continue
			}
			by[e.to] = arc{node, e}
			if e.to == to {
				var path []arc
				for at := to; at != from; at = by[at].from {
					path = append([]arc{by[at]}, path...)
				}
				return path
			}
			queue = append(queue, e.to)
		}
	}
	return nil
}

// components returns the strongly connected components of several nodes by edges of these kinds (Tarjan), and writes the number of each
// into `component`, which is -1 elsewhere.
func (g *graph) components(nodes []int, kinds int, component []int) [][]int {
	index, low := map[int]int{}, map[int]int{}
	isInside, isOnStack := map[int]bool{}, map[int]bool{}
	for _, node := range nodes {
		isInside[node] = true
		component[node] = -1
	}
	var stack []int
	var found [][]int
	type frame struct{ node, next int }
	for _, root := range nodes {
		if _, isKnown := index[root]; isKnown {
			continue
		}
		frames := []frame{{root, 0}}
		for len(frames) > 0 {
			top := &frames[len(frames)-1]
			node := top.node
			if top.next == 0 {
				index[node], low[node] = len(index), len(index)
				stack, isOnStack[node] = append(stack, node), true
			}
			isDeeper := false
			for top.next < len(g.edges[node]) {
				e := g.edges[node][top.next]
				top.next++
				if 1<<e.kind&kinds == 0 || !isInside[e.to] {
					continue
				}
				if _, isKnown := index[e.to]; !isKnown {
					frames, isDeeper = append(frames, frame{e.to, 0}), true
					break
				}
				if isOnStack[e.to] && index[e.to] < low[node] {
					low[node] = index[e.to]
				}
			}
			if isDeeper {
				continue
			}
			frames = frames[:len(frames)-1]
			if len(frames) > 0 {
				if parent := frames[len(frames)-1].node; low[node] < low[parent] {
					low[parent] = low[node]
				}
			}
			if low[node] == index[node] {
				var part []int
				for {
					last := stack[len(stack)-1]
					stack, isOnStack[last] = stack[:len(stack)-1], false
					part = append(part, last)
					if last == node {
						break
					}
				}
				if len(part) > 1 {
					for _, member := range part {
						component[member] = len(found)
					}
					found = append(found, part)
				}
			}
		}
	}
	return found
}

func (g *graph) describe(cycle []arc, class *cycleClass) string {
	lines := []string{fmt.Sprintf("%d operations in a cycle: %s", len(cycle), class.meaning)}
	for i, arc := range cycle {
		e := arc.edge
		next := (i+1)%len(cycle) + 1
		why := ""
		switch e.kind {
		case ww:
			why = fmt.Sprintf("is before %d, which writes %s to %v behind it", next, e.value, e.at)
		case wr:
			why = fmt.Sprintf("is before %d, which reads its %s in %v", next, e.value, e.at)
		case rw:
			why = fmt.Sprintf("is before %d, whose %s in %v it does not see", next, e.value, e.at)
		case rt:
			why = fmt.Sprintf("is before %d, which was called after it had returned", next)
		}
		lines = append(lines, fmt.Sprintf("    %d. %v\n       %s", i+1, g.ops[arc.from], why))
	}
	return strings.Join(lines, "\n")
}
