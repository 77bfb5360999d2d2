package pubsublocal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controls are the methods of a Server that the admin endpoint calls.
type controls interface {
	// SetDown starts or ends an outage.
	SetDown(down bool)
	// CutConnections breaks every connection.
	CutConnections()
	// CutStreams ends every StreamingPull stream with UNAVAILABLE.
	CutStreams()
	// Duplicate delivers the next count acknowledged messages of a subscription again. It returns gRPC status errors.
	Duplicate(subscription string, count int) error
}

// newAdminHandler injects faults over HTTP, for tests that are not written in Go:
//
//	POST   /admin/faults              put a fault in force; the body is JSON, see Fault.UnmarshalJSON, such as
//	                                  {"method":"Publish","code":"UNAVAILABLE","times":3}; returns {"id":"1"}
//	GET    /admin/faults              list the faults in force, with the calls and the time that are left
//	DELETE /admin/faults              remove all faults
//	DELETE /admin/faults/{id}         remove one fault
//	POST   /admin/down?for=5s         close and refuse connections for that long; only Server.SetDown ends it earlier
//	POST   /admin/cut                 close the connections
//	POST   /admin/streams:cut         end the StreamingPull streams with UNAVAILABLE
//	POST   /admin/duplicate?subscription=projects/p/subscriptions/s&count=1
//	                                  deliver the next acknowledged messages of a subscription again
//	POST   /admin/clock?advance=30s   move the clock forward; returns {"now":"2026-01-02T03:04:05Z"}
//
// All times are by the clock of the server. A request has taken effect when it returns. Only down and cut respond
// first, because they close the connection of the response. Errors have the form of the JSON API, and name the
// parameter.
func newAdminHandler(server controls, faults *faults) http.Handler {
	a := admin{server: server, faults: faults, up: faults.clock.newTimer(func() { server.SetDown(false) })}
	mux := http.NewServeMux()
	for pattern, handle := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST /admin/faults":        a.addFault,
		"GET /admin/faults":         a.listFaults,
		"DELETE /admin/faults":      a.removeFaults,
		"DELETE /admin/faults/{id}": a.removeFault,
		"POST /admin/down":          a.down,
		"POST /admin/cut":           a.cut,
		"POST /admin/streams:cut":   a.cutStreams,
		"POST /admin/duplicate":     a.duplicate,
		"POST /admin/clock":         a.advance,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			err := handle(w, r)
			if s, ok := status.FromError(err); err != nil && ok {
				writeError(w, s.Code(), s.Message(), nil)
			} else if err != nil {
				writeError(w, codes.InvalidArgument, err.Error(), nil)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, codes.NotFound, fmt.Sprintf("no such path: %s %s", r.Method, r.URL.Path), nil)
	})
	return mux
}

type admin struct {
	server controls
	faults *faults
	up     *timer // ends the outage of down
}

func (a admin) addFault(w http.ResponseWriter, r *http.Request) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("request body: %w", err)
	}
	var fault Fault
	if err := fault.UnmarshalJSON(body); err != nil {
		return err
	}
	if err := fault.validate(); err != nil {
		return err
	}
	if !hasMethod(fault.Method) {
		return fmt.Errorf("method: there is no method %q; write it like Publish or StreamingPull", fault.Method)
	}
	writeJSON(w, map[string]string{"id": a.faults.addNamed(fault)})
	return nil
}

// hasMethod reports whether one of the services has this method. The empty name stands for all methods.
func hasMethod(name string) bool {
	return name == "" || slices.ContainsFunc([]grpc.ServiceDesc{
		pubsubpb.Publisher_ServiceDesc, pubsubpb.Subscriber_ServiceDesc, pubsubpb.SchemaService_ServiceDesc, iampb.IAMPolicy_ServiceDesc,
	}, func(service grpc.ServiceDesc) bool {
		return slices.ContainsFunc(service.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == name }) ||
			slices.ContainsFunc(service.Streams, func(s grpc.StreamDesc) bool { return s.StreamName == name })
	})
}

func (a admin) listFaults(w http.ResponseWriter, r *http.Request) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	type named struct {
		ID    string `json:"id"`
		Fault Fault  `json:"fault"`
	}
	list := []named{}
	for _, active := range a.faults.active() {
		list = append(list, named{active.id, active.Fault})
	}
	writeJSON(w, map[string]any{"faults": list})
	return nil
}

func (a admin) removeFaults(w http.ResponseWriter, r *http.Request) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	a.faults.removeAll()
	writeJSON(w, struct{}{})
	return nil
}

func (a admin) removeFault(w http.ResponseWriter, r *http.Request) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	if id := r.PathValue("id"); !a.faults.removeNamed(id) {
		return status.Errorf(codes.NotFound, "id: no fault %q is in force", id)
	}
	writeJSON(w, struct{}{})
	return nil
}

func (a admin) down(w http.ResponseWriter, r *http.Request) error {
	given, err := parameters(r, "for")
	if err != nil {
		return err
	}
	length, err := positiveDuration("for", given.Get("for"))
	if err != nil {
		return err
	}
	if err := answerFirst(w); err != nil {
		return err
	}
	a.server.SetDown(true)
	a.up.set(a.faults.clock.Now().Add(length))
	return nil
}

func (a admin) cut(w http.ResponseWriter, r *http.Request) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	if err := answerFirst(w); err != nil {
		return err
	}
	a.server.CutConnections()
	return nil
}

// answerFirst responds before the connection is closed.
func answerFirst(w http.ResponseWriter) error {
	w.Header().Set("Connection", "close")
	w.Header().Set("Content-Length", "3") // so that the client needs no final chunk, which it would not get
	writeJSON(w, struct{}{})
	return http.NewResponseController(w).Flush()
}

func (a admin) cutStreams(w http.ResponseWriter, r *http.Request) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	a.server.CutStreams()
	writeJSON(w, struct{}{})
	return nil
}

func (a admin) duplicate(w http.ResponseWriter, r *http.Request) error {
	given, err := parameters(r, "subscription", "count")
	if err != nil {
		return err
	}
	if given.Get("subscription") == "" {
		return errors.New("subscription: is required, as projects/p/subscriptions/s")
	}
	count := 1
	if text := given.Get("count"); text != "" {
		if count, err = strconv.Atoi(text); err != nil || count < 1 {
			return fmt.Errorf("count: %q is no number from 1 on", text)
		}
	}
	if err := a.server.Duplicate(given.Get("subscription"), count); err != nil {
		return err
	}
	writeJSON(w, struct{}{})
	return nil
}

func (a admin) advance(w http.ResponseWriter, r *http.Request) error {
	given, err := parameters(r, "advance")
	if err != nil {
		return err
	}
	by, err := positiveDuration("advance", given.Get("advance"))
	if err != nil {
		return err
	}
	a.faults.clock.Advance(by)
	writeJSON(w, map[string]string{"now": a.faults.clock.Now().UTC().Format(time.RFC3339Nano)})
	return nil
}

// parameters returns the parameters of the query. It refuses one that is unknown or that is given twice.
func parameters(r *http.Request, known ...string) (url.Values, error) {
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	for name, values := range given {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: unknown parameter; there is %s", name, cmp.Or(strings.Join(known, ", "), "none"))
		}
		if len(values) > 1 {
			return nil, fmt.Errorf("%s: is given %d times", name, len(values))
		}
	}
	return given, nil
}

func positiveDuration(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, fmt.Errorf("%s: is required, such as %s=5s", name, name)
	}
	d, err := parseDuration(name, text)
	if err == nil && d == 0 {
		return 0, fmt.Errorf("%s: must be more than 0", name)
	}
	return d, err
}

// decodeStrictly decodes one JSON object and refuses fields that target does not have.
func decodeStrictly(data []byte, target any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(target); err != nil {
		if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) && wrong.Field != "" {
			return fmt.Errorf("%s: is a %s, must be a %s", wrong.Field, wrong.Value, wrong.Type)
		}
		if errors.Is(err, io.EOF) {
			return errors.New("request body: is empty, must be a JSON object")
		}
		return fmt.Errorf("request body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("request body: has more than one JSON value")
	}
	return nil
}

func writeJSON(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_ = json.NewEncoder(w).Encode(answer) // the error is only that the client has disconnected
}
