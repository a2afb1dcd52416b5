// The format of histories: see docs/history-format.md, which states it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// formatName and formatVersion are what the first line of a file has to say.
const (
	formatName    = "squall-history"
	formatVersion = 1
)

// lineBytesMax bounds the memory that a line may take.
const lineBytesMax = 64 << 20

// never is the return time of an operation that has not returned, or whose effect is uncertain.
const never = int64(math.MaxInt64)

// nothing is the value of a register that was never written.
const nothing = "null"

// Outcome says whether an operation was applied.
type Outcome int

const (
	// Unknown: it may have been applied, may be applied later, or never.
	Unknown Outcome = iota
	// OK: it was applied between its call and its return.
	OK
	// Failed: it was not applied and never will be.
	Failed
)

// Promise says what a read promises.
type Promise int

const (
	// Latest: the read is linearizable.
	Latest Promise = iota
	// Session: some earlier state, which is not before any that the same client has seen.
	Session
	// Past: some earlier state.
	Past
)

// Step is an operation on one key, alone or as a part of a transaction.
type Step struct {
	Kind     string
	Key      string
	Value    string
	Expected string
	From, To int
	Promise  Promise
	Result   Result
}

// Result is what a step returned.
type Result struct {
	// What a read has found.
	Value string
	// What `list` has found, from the step's From on; nil if an append did not return it.
	List []string
	// The place of an appended value, or -1.
	Place int
	// Whether a cas has written.
	Written bool
}

// Op is an operation of a client.
type Op struct {
	ID           int64
	Client       string
	Object       string
	IsTxn        bool
	Steps        []Step
	Call, Return int64
	Outcome      Outcome
	hasReturned  bool
}

// History is what a file holds.
type History struct {
	About string
	// Whether the file ends before its `end` line, as its first line allows.
	IsCut bool
	Ops   []*Op
}

type headLine struct {
	Format   string `json:"format"`
	Version  int    `json:"version"`
	Clock    string `json:"clock"`
	About    string `json:"about"`
	MayBeCut bool   `json:"may_be_cut"`
}

type stepLine struct {
	Kind     string          `json:"kind"`
	Key      *string         `json:"key"`
	Value    json.RawMessage `json:"value"`
	Expected json.RawMessage `json:"expected"`
	From     int             `json:"from"`
	To       int             `json:"to"`
	Promise  string          `json:"promise"`
}

type eventLine struct {
	Line    int64           `json:"line"`
	Op      *int64          `json:"op"`
	Client  string          `json:"client"`
	Object  string          `json:"object"`
	Call    *int64          `json:"call"`
	Steps   []stepLine      `json:"steps"`
	Return  *int64          `json:"return"`
	Outcome string          `json:"outcome"`
	Result  json.RawMessage `json:"result"`
	End     bool            `json:"end"`
	Calls   int             `json:"calls"`
	stepLine
}

// reader collects the operations of a file.
type reader struct {
	history *History
	byID    map[int64]*Op
	line    int64
	ended   bool
}

// Read reads a whole file. An error means that the file cannot be judged.
func Read(from io.Reader) (*History, error) {
	lines := bufio.NewReaderSize(from, 1<<16)
	text, whole, err := nextLine(lines)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, errors.New("the file is empty")
	}
	var head headLine
	if err := decode(text, &head); err != nil || !whole {
		return nil, fmt.Errorf("line 1 is not the head of a history (%v)", err)
	}
	if head.Format != formatName || head.Version != formatVersion {
		return nil, fmt.Errorf("line 1 says format %q, version %d: this program reads %q, version %d",
			head.Format, head.Version, formatName, formatVersion)
	}
	r := reader{history: &History{About: head.About}, byID: map[int64]*Op{}, line: 1}
	for {
		text, whole, err := nextLine(lines)
		if err != nil {
			return nil, err
		}
		if len(text) == 0 {
			break
		}
		r.line++
		if !whole {
			if head.MayBeCut {
				// What a torn line was about has no effect: its call was not issued, or its return is not known.
				break
			}
			return nil, fmt.Errorf("line %d is torn: the file was truncated, and its first line does not say `may_be_cut`", r.line)
		}
		if err := r.take(text); err != nil {
			return nil, fmt.Errorf("line %d: %w", r.line, err)
		}
	}
	if !r.ended && !head.MayBeCut {
		return nil, fmt.Errorf("the file has no `end` line: it was truncated after line %d, and its first line does not say `may_be_cut`", r.line)
	}
	r.history.IsCut = !r.ended
	return r.history, nil
}

// nextLine returns the next line without its end, and whether it has one; nothing at the end of the file.
func nextLine(lines *bufio.Reader) ([]byte, bool, error) {
	var text []byte
	for {
		part, err := lines.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case err == nil:
			return text, true, nil
		case errors.Is(err, io.EOF):
			return text, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		case len(text) > lineBytesMax:
			return nil, false, fmt.Errorf("a line is longer than %d bytes", lineBytesMax)
		}
	}
}

// decode reads one JSON object with no other fields than those of `into`.
func decode(text []byte, into interface{}) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something behind the object")
	}
	return nil
}

func (r *reader) take(text []byte) error {
	var event eventLine
	if err := decode(text, &event); err != nil {
		return err
	}
	if r.ended {
		return errors.New("there is something behind the `end` line")
	}
	if event.Line != r.line {
		return fmt.Errorf("it is numbered %d: lines are missing, doubled or out of order", event.Line)
	}
	switch {
	case event.End:
		r.ended = true
		if event.Calls != len(r.history.Ops) {
			return fmt.Errorf("the `end` line counts %d calls, and there are %d", event.Calls, len(r.history.Ops))
		}
		return nil
	case event.Op == nil || (event.Call == nil) == (event.Return == nil):
		return errors.New("it is neither a call nor a return nor the end")
	case event.Call != nil:
		return r.takeCall(&event)
	default:
		return r.takeReturn(&event)
	}
}

func (r *reader) takeCall(event *eventLine) error {
	if r.byID[*event.Op] != nil {
		return fmt.Errorf("operation %d is called twice", *event.Op)
	}
	if event.Client == "" {
		return errors.New("a call needs a client")
	}
	op := &Op{ID: *event.Op, Client: event.Client, Object: event.Object, Call: *event.Call, Return: never}
	if event.Kind == "txn" {
		op.IsTxn = true
		if len(event.Steps) == 0 {
			return errors.New("a transaction needs steps")
		}
		for _, line := range event.Steps {
			step, err := readStep(&line, true)
			if err != nil {
				return err
			}
			op.Steps = append(op.Steps, step)
		}
	} else {
		step, err := readStep(&event.stepLine, false)
		if err != nil {
			return err
		}
		op.Steps = []Step{step}
	}
	r.byID[op.ID] = op
	r.history.Ops = append(r.history.Ops, op)
	return nil
}

func readStep(line *stepLine, inTxn bool) (Step, error) {
	step := Step{Kind: line.Kind, From: line.From, To: line.To, Result: Result{Place: -1}}
	if line.Key == nil {
		return step, errors.New("a step needs a key")
	}
	step.Key = *line.Key
	var err error
	switch line.Kind {
	case "write", "append":
		step.Value, err = scalar(line.Value)
	case "cas":
		if inTxn {
			return step, errors.New("a transaction cannot have a `cas`: write it as a read and a write")
		}
		if step.Value, err = scalar(line.Value); err == nil {
			step.Expected, err = scalar(line.Expected)
		}
	case "read", "list":
		switch line.Promise {
		case "", "latest":
		case "session":
			step.Promise = Session
		case "past":
			step.Promise = Past
		default:
			err = fmt.Errorf("there is no promise %q", line.Promise)
		}
		if inTxn && step.Promise != Latest {
			err = errors.New("reads in a transaction promise the latest state")
		}
	default:
		err = fmt.Errorf("there is no kind %q", line.Kind)
	}
	if line.From < 0 || line.To < 0 || (line.To > 0 && line.To < line.From) || (inTxn && line.From+line.To > 0) {
		err = errors.New("`from` and `to` are a range of places, outside of transactions")
	}
	return step, err
}

func (r *reader) takeReturn(event *eventLine) error {
	op := r.byID[*event.Op]
	if op == nil {
		return fmt.Errorf("operation %d returns, and was not called", *event.Op)
	}
	if op.hasReturned {
		return fmt.Errorf("operation %d returns twice", op.ID)
	}
	if *event.Return < op.Call {
		return fmt.Errorf("operation %d returns before its call", op.ID)
	}
	op.hasReturned = true
	switch event.Outcome {
	case "unknown":
	case "fail":
		op.Outcome = Failed
	case "ok":
		op.Outcome, op.Return = OK, *event.Return
		return readResults(op, event.Result)
	default:
		return fmt.Errorf("there is no outcome %q", event.Outcome)
	}
	return nil
}

func readResults(op *Op, text json.RawMessage) error {
	parts := []json.RawMessage{text}
	if op.IsTxn {
		if err := json.Unmarshal(text, &parts); err != nil || len(parts) != len(op.Steps) {
			return fmt.Errorf("a transaction of %d steps needs as many results", len(op.Steps))
		}
	}
	for i, part := range parts {
		if err := readResult(&op.Steps[i], part); err != nil {
			return fmt.Errorf("operation %d: %w", op.ID, err)
		}
	}
	return nil
}

func readResult(step *Step, text json.RawMessage) error {
	result := &step.Result
	var err error
	switch step.Kind {
	case "read":
		result.Value, err = scalar(text)
	case "cas":
		err = json.Unmarshal(text, &result.Written)
	case "list":
		result.List, err = readList(text)
		if err == nil && step.To > 0 && len(result.List) > step.To-step.From {
			err = errors.New("a `list` has returned more than it asked for")
		}
	case "append":
		switch {
		case len(text) == 0 || string(text) == nothing:
		case text[0] == '[':
			result.List, err = readList(text)
		default:
			if err = json.Unmarshal(text, &result.Place); err == nil && result.Place < 0 {
				err = errors.New("a place is a number from 0")
			}
		}
	case "write":
	}
	return err
}

func readList(text json.RawMessage) ([]string, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil || parts == nil {
		return nil, errors.New("a list is expected as the result")
	}
	list := make([]string, len(parts))
	for i, part := range parts {
		value, err := scalar(part)
		if err != nil {
			return nil, err
		}
		list[i] = value
	}
	return list, nil
}

// scalar returns a JSON text that is no list and no object, as it is written.
func scalar(text json.RawMessage) (string, error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return "", errors.New("a value is missing")
	}
	if text[0] == '[' || text[0] == '{' {
		return "", errors.New("a value is a string, a number, true, false or null")
	}
	return string(text), nil
}
