package relayhttp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/names"
	"example.com/videocatalog/internal/outbox"
)

const (
	inFlight       = 64                     // requests at a time, over all keys
	requestTimeout = 10 * time.Second       // of a request, with its whole response
	stopTimeout    = 400 * time.Millisecond // less than a process waits for stop, so that no request outlives it
	maxResponse    = 64 << 10               // bytes that are read
)

// sink posts messages to one endpoint; it implements [outbox.Broker]. The key of a message is its aggregate.
// A message is sent only after the endpoint has acknowledged the previous one of its key. After a failure, no
// later one is sent until all results of the key were read.
type sink struct {
	url      string
	key      []byte
	client   http.Client
	alive    context.Context //nolint:containedctx // of all requests; cancel ends it
	cancel   context.CancelFunc
	timeout  time.Duration
	slots    chan struct{} // one per request
	messages sync.WaitGroup

	mu   sync.Mutex
	keys map[envelope.Aggregate]*key // guarded by mu, with their fields
}

// key has the messages of an aggregate whose results were not read.
type key struct {
	last   *receipt
	unread int
}

func newSink(url string, secret []byte) *sink {
	s := &sink{url: url, key: secret, timeout: requestTimeout, slots: make(chan struct{}, inFlight), keys: make(map[envelope.Aggregate]*key)}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // nothing replaces it
	transport.MaxIdleConnsPerHost = inFlight
	transport.IdleConnTimeout = 2 * time.Second                                                         // closes a connection of HTTP/2 whose request was canceled: at the stop it is not idle yet
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: 2 * time.Second} // all requests share a connection
	s.client = http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	s.alive, s.cancel = context.WithCancel(context.Background())
	return s
}

// stop waits shortly for the messages that were handed over, and then cancels their requests.
func (s *sink) stop() {
	defer s.cancel()
	defer time.AfterFunc(stopTimeout, s.cancel).Stop()
	s.messages.Wait()
	s.client.CloseIdleConnections()
}

// Publish implements [outbox.Broker].
func (s *sink) Publish(m envelope.Message) outbox.Receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[m.Aggregate()] == nil {
		s.keys[m.Aggregate()] = new(key)
	}
	k := s.keys[m.Aggregate()]
	r := &receipt{sink: s, message: m, before: k.last, done: make(chan struct{})}
	k.last = r
	k.unread++
	s.messages.Go(r.send)
	return r
}

// receipt is a message and its result.
type receipt struct {
	sink    *sink
	message envelope.Message
	before  *receipt // of its key; nil: all before were acknowledged, or read
	err     error    // valid after done
	done    chan struct{}
	givenUp atomic.Bool // by Wait; set under sink.mu
}

var errNotSent = errors.New("not sent: an earlier message of the aggregate failed, or its pass has given up")

// send sends a message in its turn. A crash here leaves it pending in the database: it is sent again.
func (r *receipt) send() {
	if r.before != nil {
		<-r.before.done
		if r.before.err != nil {
			r.err = errNotSent
		}
		r.before = nil // so that no chain keeps what is over
	}
	if r.err == nil {
		r.sink.slots <- struct{}{}
		if r.err = errNotSent; !r.givenUp.Load() {
			r.err = r.sink.post(r.message)
		}
		<-r.sink.slots
	}
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	close(r.done)
	if r.givenUp.Load() {
		r.read()
	}
}

// read counts a result that was read. After the last one, the key begins again.
func (r *receipt) read() {
	k := r.sink.keys[r.message.Aggregate()]
	if k.unread--; k.unread == 0 {
		delete(r.sink.keys, r.message.Aggregate())
	}
}

// Wait implements [outbox.Receipt]. A request that it gives up goes on, because the endpoint may have the message.
func (r *receipt) Wait(ctx context.Context) error {
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	select {
	case <-r.done: // a response that has come counts
		r.read()
		return r.err
	default:
		r.givenUp.Store(true)
		return ctx.Err()
	}
}

// post sends a message once. 2xx acknowledges it; 4xx refuses it, except the codes that ask for a retry. After any
// other response, or none, the result is unknown.
func (s *sink) post(m envelope.Message) error {
	ctx, cancel := context.WithTimeout(s.alive, s.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(m.Payload))
	if err != nil {
		return err
	}
	setEvent(request.Header, m)
	sign(request.Header, s.key, m.ID.String(), time.Now(), m.Payload)
	response, err := s.client.Do(request)
	if err != nil {
		return fmt.Errorf("post: %w", errors.Unwrap(err)) // without the URL, which may have a secret
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil { // an endpoint that fails in its response may not have the message
		return fmt.Errorf("read the response %d: %w", response.StatusCode, err)
	}
	err = fmt.Errorf("the response is %d: %.200q", response.StatusCode, text)
	retried := []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}
	switch {
	case response.StatusCode/100 == 2:
		return nil
	case response.StatusCode/100 == 4 && !slices.Contains(retried, response.StatusCode):
		return &outbox.RefusedError{Err: err}
	}
	return err
}

// setEvent adds the attributes in the binary mode of CloudEvents
// (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#31-binary-content-mode).
func setEvent(header http.Header, m envelope.Message) {
	header.Set("Content-Type", "application/protobuf")
	header.Set("Ce-Specversion", "1.0")
	header.Set("Ce-Source", "/"+names.Service+"/"+m.AggregateType)
	header.Set("Ce-Subject", escape(m.AggregateID))
	header.Set("Ce-Partitionkey", escape(m.AggregateID))
	known := map[string]string{envelope.AttrEventID: "id", envelope.AttrEventType: "type", envelope.AttrOccurredAt: "time"}
	for name, value := range m.Attributes() { // the others are extensions, whose names have no underscore
		header.Set("Ce-"+cmp.Or(known[name], strings.ReplaceAll(name, "_", "")), escape(value))
	}
}

// escape percent-encodes a value as the binding says in 3.1.3.2.
func escape(value string) string {
	var escaped strings.Builder
	for _, b := range []byte(value) {
		if b > ' ' && b <= '~' && b != '"' && b != '%' {
			escaped.WriteByte(b)
		} else {
			fmt.Fprintf(&escaped, "%%%02X", b)
		}
	}
	return escaped.String()
}

// sign adds the signature (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md#signature-scheme).
func sign(header http.Header, key []byte, id string, at time.Time, payload []byte) {
	timestamp, mac := strconv.FormatInt(at.Unix(), 10), hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, payload) // a hash returns no error
	header.Set("Webhook-Id", id)
	header.Set("Webhook-Timestamp", timestamp)
	header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
