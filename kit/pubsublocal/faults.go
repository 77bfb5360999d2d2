package pubsublocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault says which calls fail or are delayed, and how. It applies to calls over gRPC and over JSON. The zero Fault
// has no effect.
type Fault struct {
	// Method is the last part of a method's name, such as Publish, Acknowledge or StreamingPull. A fault applies to
	// a stream when it opens. Empty: every method.
	Method string
	// OrderingKey restricts the fault to Publish calls with messages of this key. Empty: no restriction.
	OrderingKey string
	// Times is the number of calls that the fault applies to. 0: no limit.
	Times int
	// For is how long the fault is in force, by the clock of the server. 0: no limit.
	For time.Duration
	// Delay is how long a call waits before anything else, by the clock of the server.
	Delay time.Duration
	// Code is the code that the call returns. OK: the call is executed.
	Code codes.Code
	// AnswerLost means that the call takes effect before it returns Code. It needs a Code, and is not for streams.
	AnswerLost bool
}

// faultJSON is the JSON form of a Fault.
type faultJSON struct {
	Method      string `json:"method,omitempty"`
	OrderingKey string `json:"ordering_key,omitempty"`
	Times       int    `json:"times,omitempty"`
	For         string `json:"for,omitempty"`
	Delay       string `json:"delay,omitempty"`
	Code        string `json:"code,omitempty"`
	AnswerLost  bool   `json:"answer_lost,omitempty"`
}

// MarshalJSON writes the form that UnmarshalJSON reads.
func (f Fault) MarshalJSON() ([]byte, error) {
	form := faultJSON{Method: f.Method, OrderingKey: f.OrderingKey, Times: f.Times, AnswerLost: f.AnswerLost}
	if f.For != 0 {
		form.For = f.For.String()
	}
	if f.Delay != 0 {
		form.Delay = f.Delay.String()
	}
	if f.Code != codes.OK {
		form.Code = codeName(f.Code)
	}
	return json.Marshal(form)
}

// UnmarshalJSON reads an object with the fields method, ordering_key, times, for, delay, code and answer_lost. A
// duration is a text such as "1.5s", and a code one such as "UNAVAILABLE". Unknown fields are an error.
func (f *Fault) UnmarshalJSON(data []byte) error {
	var form faultJSON
	if err := decodeStrictly(data, &form); err != nil {
		return err
	}
	fault := Fault{Method: form.Method, OrderingKey: form.OrderingKey, Times: form.Times, AnswerLost: form.AnswerLost}
	var err error
	if fault.For, err = parseDuration("for", form.For); err != nil {
		return err
	}
	if fault.Delay, err = parseDuration("delay", form.Delay); err != nil {
		return err
	}
	if form.Code != "" {
		number, ok := rpccode.Code_value[strings.ToUpper(form.Code)]
		if !ok {
			return fmt.Errorf("code: %q is no gRPC code; write it like UNAVAILABLE", form.Code)
		}
		fault.Code = codes.Code(number) //nolint:gosec // at most 16
	}
	*f = fault
	return nil
}

// validate returns an error if the fields contradict each other. The error names the fields as in JSON.
func (f Fault) validate() error {
	switch {
	case f.Times < 0:
		return errors.New("times: must not be negative")
	case f.OrderingKey != "" && f.Method != "" && f.Method != "Publish":
		return fmt.Errorf("ordering_key: only Publish has one, not %s", f.Method)
	case f.AnswerLost && f.Code == codes.OK:
		return errors.New("answer_lost: needs a code, which the caller gets instead of the response")
	case f.AnswerLost && f.Method == "StreamingPull":
		return errors.New("answer_lost: StreamingPull is a stream and has no single response")
	case f.Code == codes.OK && f.Delay == 0:
		return errors.New("a fault needs a code or a delay")
	}
	return nil
}

// codeName returns the name of a code in the specification of gRPC, such as NOT_FOUND.
func codeName(code codes.Code) string {
	return rpccode.Code(code).String() //nolint:gosec // at most 16
}

// parseDuration reads a duration, which must not be negative. The empty text is 0.
func parseDuration(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s: %q is no duration from 0 on; write it like 1.5s or 200ms", name, text)
	}
	return d, nil
}

// faults are the faults in force. Its methods are safe for concurrent use.
type faults struct {
	clock *Clock

	mu   sync.Mutex
	list []*activeFault // guarded by mu: oldest first
	last int            // guarded by mu: number of the newest fault
}

type activeFault struct {
	Fault

	id    string
	until time.Time // zero: no limit
}

func newFaults(clock *Clock) *faults { return &faults{clock: clock} }

// add puts a fault in force until remove is called. If several faults match a call, the oldest one applies.
func (f *faults) add(fault Fault) (remove func()) {
	id := f.addNamed(fault)
	return func() { f.removeNamed(id) }
}

func (f *faults) addNamed(fault Fault) (id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	added := &activeFault{Fault: fault, id: strconv.Itoa(f.last)}
	if fault.For > 0 {
		added.until = f.clock.Now().Add(fault.For)
	}
	f.list = append(f.list, added)
	return added.id
}

// removeNamed removes a fault, and reports whether it was in force.
func (f *faults) removeNamed(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropExpired()
	before := len(f.list)
	f.list = slices.DeleteFunc(f.list, func(a *activeFault) bool { return a.id == id })
	return len(f.list) < before
}

func (f *faults) removeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = nil
}

// active returns copies of the faults in force. Times and For are what is left of them.
func (f *faults) active() []activeFault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropExpired()
	answer := make([]activeFault, len(f.list))
	for i, a := range f.list {
		answer[i] = *a
		if !a.until.IsZero() {
			answer[i].For = a.until.Sub(f.clock.Now())
		}
	}
	return answer
}

// dropExpired removes the faults whose time is over. It is called with mu held.
func (f *faults) dropExpired() {
	if len(f.list) == 0 {
		return
	}
	now := f.clock.Now()
	f.list = slices.DeleteFunc(f.list, func(a *activeFault) bool { return !a.until.IsZero() && !now.Before(a.until) })
}

// take returns the fault that applies to a call, and counts the call. If there is none, it returns the zero Fault.
func (f *faults) take(fullMethod string, request any) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropExpired()
	method := fullMethod[strings.LastIndex(fullMethod, "/")+1:]
	for i, a := range f.list {
		if a.Method != "" && a.Method != method || a.OrderingKey != "" && !hasOrderingKey(request, a.OrderingKey) {
			continue
		}
		taken := a.Fault
		if a.Times > 0 {
			if a.Times--; a.Times == 0 {
				f.list = slices.Delete(f.list, i, i+1)
			}
		}
		return taken
	}
	return Fault{}
}

func hasOrderingKey(request any, key string) bool {
	publish, ok := request.(*pubsubpb.PublishRequest)
	return ok && slices.ContainsFunc(publish.GetMessages(), func(m *pubsubpb.PubsubMessage) bool { return m.GetOrderingKey() == key })
}

// unary is a grpc.UnaryServerInterceptor.
func (f *faults) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	fault := f.take(info.FullMethod, request)
	if err := f.wait(ctx, fault.Delay); err != nil {
		return nil, err
	}
	if fault.Code == codes.OK {
		return handler(ctx, request)
	}
	if fault.AnswerLost {
		_, _ = handler(ctx, request) // it takes effect, but its result is lost
	}
	return nil, fault.err()
}

// stream is a grpc.StreamServerInterceptor.
func (f *faults) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	fault := f.take(info.FullMethod, nil)
	if err := f.wait(stream.Context(), fault.Delay); err != nil {
		return err
	}
	if fault.Code != codes.OK {
		return fault.err()
	}
	return handler(server, stream)
}

// wait waits for delay by the clock of the server. It returns an error if the caller disconnects first.
func (f *faults) wait(ctx context.Context, delay time.Duration) error {
	if delay <= 0 {
		return nil
	}
	over := make(chan struct{})
	t := f.clock.newTimer(func() { close(over) })
	t.set(f.clock.Now().Add(delay))
	select {
	case <-ctx.Done():
		t.set(time.Time{})
		return status.FromContextError(ctx.Err()).Err()
	case <-over:
		return nil
	}
}

func (f Fault) err() error { return status.Error(f.Code, "injected fault") }
