package port

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/problem"
)

// restKey is the context key of the *restRequest of a REST request.
type restKey struct{}

type restRequest struct {
	start    time.Time
	header   http.Header   // of the response
	request  *http.Request // set once its path has matched a method
	ifMatch  string        // the etag in If-Match; empty: none
	tooLarge bool
	called   bool // it became a call, which logs its own line
}

func restOf(ctx context.Context) *restRequest {
	if seen, ok := ctx.Value(restKey{}).(*restRequest); ok {
		return seen
	}
	return new(restRequest) // not a REST call; nobody else can use the in-process connection
}

// isStream reports whether the response of a REST request is a stream
// (AIP-136).
func isStream(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, ":watch") }

// body names the errors of reading a request body for the caller. It records that
// a body is too large, because the gateway drops that error.
type body struct {
	io.ReadCloser
	seen *restRequest
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		b.seen.tooLarge = true
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.New("body: it took longer than a request may")
	}
	return n, err //nolint:wrapcheck // an io.Reader's
}

// probeKey is the context key of a *bool. It marks a request that only checks
// whether a handler exists; the *bool receives the result.
type probeKey struct{}

// checked wraps every handler of the gateway. It rejects a request that must
// not become a call: unknown path, invalid text, body or conditions.
func (g *gateway) checked(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, path map[string]string) {
		exists := true
		for _, name := range path {
			exists = exists && !strings.Contains(name, ":") && !strings.HasSuffix(name, "/") // not the verb of another method, and not an empty id
		}
		if hit, ok := r.Context().Value(probeKey{}).(*bool); ok {
			*hit = exists
			return
		}
		if !exists {
			g.notHere(w, r)
			return
		}
		seen := restOf(r.Context())
		seen.request = r
		if err := cmp.Or(checkPath(path), checkBody(r), seen.checkConditions(r)); err != nil {
			if r.ProtoMajor == 1 && r.ContentLength != 0 {
				w.Header().Set("Connection", "close") // net/http would otherwise wait for the rest of the body
			}
			g.fail(w, r, toStatus(err))
			return
		}
		next(w, r, path)
	}
}

// checkPath rejects a path that is not UTF-8, which a message cannot hold.
func checkPath(path map[string]string) error {
	for name, value := range path {
		if !utf8.ValidString(value) {
			return problem.InvalidField(name, "must be UTF-8")
		}
	}
	return nil
}

// checkBody rejects a body where none is allowed, and one that is not JSON. It
// accepts the content type of a form, because curl sends that by default, and a
// missing content type.
func checkBody(r *http.Request) error {
	if r.Method == http.MethodGet || r.Method == http.MethodDelete {
		if r.ContentLength != 0 { // of any or unknown length; the body is not read
			return problem.InvalidField("body", "%s has none: what it takes are parameters of the query", r.Method)
		}
		return nil
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return newStatus(reasonMediaTypeUnsupported, "a body must not be encoded: %q is not supported", coding).Err()
	}
	content := r.Header.Get("Content-Type")
	if content == "" {
		return nil
	}
	kind, parameters, err := mime.ParseMediaType(content)
	charset := strings.ToLower(parameters["charset"])
	known := slices.Contains([]string{"application/json", "application/x-www-form-urlencoded"}, kind) && (charset == "" || charset == "utf-8")
	if err != nil || !known {
		return newStatus(reasonMediaTypeUnsupported, "a body must be application/json in UTF-8, not %q", content).Err()
	}
	return nil
}

// routingError handles a request whose path or method has no handler.
func (g *gateway) routingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, _ int) {
	if _, probing := r.Context().Value(probeKey{}).(*bool); !probing {
		g.notHere(w, r)
	}
}

// notHere rejects a request: with 405 if its path has other methods, else with
// 404.
func (g *gateway) notHere(w http.ResponseWriter, r *http.Request) {
	allowed := g.methodsOf(r)
	if len(allowed) == 0 {
		g.fail(w, r, newStatus(reasonPathUnknown, "there is nothing at this path").Err())
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	g.fail(w, r, notAllowed(r).Err())
}

func notAllowed(r *http.Request) *status.Status {
	return newStatus(reasonMethodNotAllowed, "no method %s here", r.Method)
}

// methodsOf returns the HTTP methods of a path. It routes a probe with each
// method, which stops before the handler.
func (g *gateway) methodsOf(r *http.Request) []string {
	var methods []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		hit := new(bool)
		probe := r.WithContext(context.WithValue(r.Context(), probeKey{}, hit))
		probe.Method = method
		g.mux.ServeHTTP(nil, probe)
		if *hit {
			methods = append(methods, method)
		}
		if *hit && method == http.MethodGet && !isStream(r) {
			methods = append(methods, http.MethodHead)
		}
	}
	return methods
}

// fail writes the error of a request that has no response yet, and logs it.
func (g *gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	if _, probing := r.Context().Value(probeKey{}).(*bool); probing {
		return
	}
	seen, st := restOf(r.Context()), restStatus(err)
	if seen.tooLarge {
		st = newStatus(reasonTooLarge, "the body is larger than %d bytes", g.maxReceive)
	}
	if seen.ifMatch != "" && st.Code() == codes.Aborted {
		writeError(w, st, http.StatusPreconditionFailed)
	} else {
		writeError(w, st, httpStatus(st))
	}
	g.requests.rest(r, st.Err())
}

var (
	fieldAndRule = regexp.MustCompile(`(?s)^([^\s:]+): (.+)$`)
	typeMismatch = regexp.MustCompile(`^type mismatch, parameter: (\S+), error: `)
)

// named returns an error of the gateway with the field that it is about. The
// gateway keeps only the text of the errors of its parsers: "field: rule" for a
// query, "body: field: rule" for a body, and its own text for a path.
func named(ctx context.Context, err error) error {
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.InvalidArgument || len(st.Details()) > 0 {
		return err
	}
	method, text := methodOf(ctx), st.Message()
	if path := typeMismatch.FindStringSubmatch(text); path != nil && method != nil {
		if fields, _ := parameterOf(method.Input(), strings.Split(path[1], ".")); fields != nil {
			return toStatus(problem.InvalidField(path[1], "%s", typeRule(fields[len(fields)-1])))
		}
	}
	found := fieldAndRule.FindStringSubmatch(text)
	if found == nil {
		return err
	}
	field, rule := found[1], found[2]
	if inner := fieldAndRule.FindStringSubmatch(rule); field == "body" && inner != nil {
		field, rule = bodyPath(method)+inner[1], inner[2]
	}
	return toStatus(problem.InvalidField(field, "%s", rule))
}

// methodOf returns the method that a REST request calls, or nil.
func methodOf(ctx context.Context) protoreflect.MethodDescriptor {
	name, _ := runtime.RPCMethod(ctx)
	name = strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", ".")
	found, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	method, _ := found.(protoreflect.MethodDescriptor)
	return method
}

// bodyPath returns the path of the body in the request, with a dot at its end;
// empty if the body is the whole request.
func bodyPath(method protoreflect.MethodDescriptor) string {
	if method == nil {
		return ""
	}
	rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
	if body := rule.GetBody(); body != "" && body != "*" {
		return body + "."
	}
	return ""
}

// streamError returns the error that ends a stream, in the form of every other
// error. It also sets the headers, which are sent if the stream has not begun.
func streamError(ctx context.Context, err error) *status.Status {
	st := restStatus(err)
	setErrorHeader(restOf(ctx).header, st)
	return st
}

// restStatus returns the status of an error, with fields named as in JSON.
func restStatus(err error) *status.Status {
	if own, ok := errors.AsType[*runtime.HTTPStatusError](err); ok { // invalid percent-encoding in the path
		err = newStatus(reasonInvalidRequest, "path: %v", own.Err).Err()
	}
	named := explain(status.Convert(err), "").Proto()
	for _, packed := range named.GetDetails() {
		var bad errdetails.BadRequest
		if !packed.MessageIs(&bad) || packed.UnmarshalTo(&bad) != nil {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			v.Field = jsonName(v.GetField())
		}
		named.Message = messageOf(bad.GetFieldViolations())
		_ = packed.MarshalFrom(&bad) // it was unpacked from one
	}
	return status.FromProto(named)
}

// jsonName returns the path of a field with its JSON names: book.publishYear.
func jsonName(path string) string {
	words := strings.Split(path, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}

// writeError writes an error response in the form of AIP-193.
func writeError(w http.ResponseWriter, st *status.Status, httpStatus int) {
	setErrorHeader(w.Header(), st)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus)
	_, _ = w.Write(append(errorBodyAs(st, httpStatus), '\n')) // the only error is that the client has left
}

func setErrorHeader(header http.Header, st *status.Status) {
	if st.Code() == codes.Unauthenticated {
		header.Set("WWW-Authenticate", "Bearer")
	}
	if httpStatus(st) == http.StatusUnsupportedMediaType {
		header.Set("Accept-Encoding", "identity") // RFC 9110, 15.5.16
	}
	if retry := detail[*errdetails.RetryInfo](st); retry != nil {
		seconds := (retry.GetRetryDelay().AsDuration() + time.Second - 1) / time.Second
		header.Set("Retry-After", strconv.Itoa(max(1, int(seconds))))
	}
}

func errorBody(st *status.Status) []byte { return errorBodyAs(st, httpStatus(st)) }

// errorBodyAs returns the JSON of an error: {"error": {"code", "status",
// "message", "details"}}. The code is the HTTP status, and the status is the
// gRPC code.
func errorBodyAs(st *status.Status, httpStatus int) []byte {
	details := make([]json.RawMessage, 0, len(st.Proto().GetDetails()))
	for _, packed := range st.Proto().GetDetails() {
		if text, err := protojson.Marshal(packed); err == nil { // fails for a type that is not linked in
			details = append(details, text)
		}
	}
	type restError struct {
		Code    int               `json:"code"`
		Status  string            `json:"status"`
		Message string            `json:"message"`
		Details []json.RawMessage `json:"details"`
	}
	text, err := json.Marshal(map[string]restError{"error": {httpStatus, statusName(st), st.Message(), details}})
	if err != nil { // cannot happen with strings and numbers
		return []byte("{}")
	}
	return text
}

// statusName returns the code of a status by its name in google.rpc.Code.
func statusName(st *status.Status) string { return code.Code(st.Proto().GetCode()).String() }

// checkConditions reads If-Match and rejects conditions that would be ignored
// (RFC 9110, section 13). Ignoring one is unsafe, because its caller relies on
// it.
func (seen *restRequest) checkConditions(r *http.Request) error {
	match, reads := r.Header.Values("If-Match"), r.Method == http.MethodGet
	switch {
	case !reads && r.Header.Get("If-None-Match") != "":
		return problem.InvalidField("If-None-Match", "is for GET and HEAD")
	case len(match) == 0:
		return nil
	case reads:
		return problem.InvalidField("If-Match", "is for methods that change something")
	case len(match) > 1 || match[0] != "*" && !isStrong(match[0]):
		return problem.InvalidField("If-Match", "must be one etag, as a response had it, or *")
	}
	seen.ifMatch = match[0]
	return nil
}

// isStrong reports whether a string is one strong entity tag (RFC 9110, 8.8.3).
func isStrong(tag string) bool {
	opaque, ok := strings.CutPrefix(tag, `"`)
	opaque, ended := strings.CutSuffix(opaque, `"`)
	return ok && ended && utf8.ValidString(opaque) && !strings.Contains(opaque, `"`)
}

// takeIfMatch copies the etag of If-Match into the request, or into its
// resource if it is an update. "*" matches any existing resource, so it needs
// no etag.
func (seen *restRequest) takeIfMatch(request proto.Message) error {
	if seen.ifMatch == "" {
		return nil
	}
	holder := request.ProtoReflect()
	if u, ok := aip.UpdateOf(request); ok {
		holder = u.Resource
	}
	field := holder.Descriptor().Fields().ByName("etag")
	if field == nil {
		return problem.InvalidField("If-Match", "is for what has an etag")
	}
	if seen.ifMatch == "*" {
		return nil
	}
	if given := holder.Get(field).String(); given != "" && given != seen.ifMatch {
		return problem.InvalidField("If-Match", "is %s, and the etag of the request another", seen.ifMatch)
	}
	holder.Set(field, protoreflect.ValueOfString(seen.ifMatch))
	return nil
}

// writeETag sets the ETag header of a resource. It turns the response into 304
// if the caller already has that etag (RFC 9110, 13.1.2).
func writeETag(ctx context.Context, w http.ResponseWriter, response proto.Message) error {
	resource, ok := response.(interface{ GetEtag() string })
	seen := restOf(ctx)
	if !ok || resource.GetEtag() == "" || seen.request == nil {
		return nil
	}
	w.Header().Set("ETag", resource.GetEtag())
	for tag := range strings.SplitSeq(strings.Join(seen.request.Header.Values("If-None-Match"), ","), ",") {
		if tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/"); tag == "*" || tag == resource.GetEtag() {
			w.Header().Del("Content-Type")
			w.WriteHeader(http.StatusNotModified) // net/http discards a body written after it
			return nil
		}
	}
	return nil
}

// callsOf is the gateway's connection. It turns REST requests into gRPC calls.
type callsOf struct{ grpc.ClientConnInterface }

func (c callsOf) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	seen := restOf(ctx)
	request, _ := args.(proto.Message)
	if err := cmp.Or(seen.checkQuery(), seen.takeIfMatch(request)); err != nil {
		return toStatus(err)
	}
	_, err := inBudget(ctx, args, func() (any, error) {
		seen.called = true
		return reply, c.ClientConnInterface.Invoke(ctx, method, args, reply, options...) //nolint:wrapcheck // the status of the call
	})
	return err
}

func (c callsOf) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	restOf(ctx).called = true
	return c.ClientConnInterface.NewStream(ctx, desc, method, options...) //nolint:wrapcheck // the same
}

// checkQuery rejects any query parameter for a method that has none. The
// gateway parses queries only for the other methods.
func (seen *restRequest) checkQuery() error {
	if seen.request != nil && seen.request.Form == nil && seen.request.URL.RawQuery != "" {
		return problem.InvalidField("query", "unknown parameter: this method has none")
	}
	return nil
}
