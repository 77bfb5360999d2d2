package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"example.com/videocatalog/internal/envelope"
	"example.com/videocatalog/internal/outbox"
)

var discard = slog.New(slog.DiscardHandler)

func mustNew(t testing.TB, store outbox.Store, broker outbox.Broker, cfg outbox.Config) *outbox.Publisher {
	t.Helper()
	publisher, _ := logged(t, store, broker, cfg)
	return publisher
}

// claimed makes the events of a claim from names like a1, which is version 1 of
// aggregate a. Their sequence numbers are 1, 2, 3 and so on.
func claimed(names string) []outbox.Claimed {
	var events []outbox.Claimed
	for i, name := range strings.Fields(names) {
		version, err := strconv.Atoi(name[1:])
		if err != nil {
			panic(err)
		}
		events = append(events, outbox.Claimed{Seq: int64(i + 1), Message: envelope.Message{
			AggregateType: "letter", AggregateID: name[:1], Version: int64(version), OccurredAt: time.Now(),
		}})
	}
	return events
}

// nameOf returns the name from which claimed makes a message.
func nameOf(m envelope.Message) string { return m.AggregateID + strconv.FormatInt(m.Version, 10) }

// letter is an aggregate of the events that claimed makes.
func letter(id string) envelope.Aggregate { return envelope.Aggregate{Type: "letter", ID: id} }

// broker is a function as a broker.
type broker func(m envelope.Message) outbox.Receipt

func (b broker) Publish(m envelope.Message) outbox.Receipt { return b(m) }

// receipt is a function as a receipt.
type receipt func(ctx context.Context) error

func (r receipt) Wait(ctx context.Context) error { return r(ctx) }

// responded responds at once.
func responded(err error) outbox.Receipt { return receipt(func(context.Context) error { return err }) }

// respondedAfter responds after a while. It makes no timer that has ended already: in
// a bubble of synctest, under -race, such timers sometimes crash Go 1.26, see
// https://go.dev/issue/78156.
func respondedAfter(d time.Duration, err error) outbox.Receipt {
	at := time.Now().Add(d)
	return receipt(func(ctx context.Context) error {
		left := time.Until(at)
		if left <= 0 {
			return err
		}
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

var (
	errUnavailable = errors.New("broker is unavailable")
	errRefused     = &outbox.RefusedError{Err: errors.New("not a letter")}
)

// Validate reports a mistake, with the defaults of unset fields.
func TestConfigValidate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  outbox.Config
		want []string // in the text of the error; none: it is valid
	}{
		{name: "zero value"},
		{name: "everything set", cfg: outbox.Config{
			Workers: 1, Batch: 1, Lease: 3 * time.Second, PublishTimeout: time.Second, PollInterval: time.Minute, MaxAttempts: 1,
		}},
		// A pass ends well before its lease ends.
		{name: "timeout of half the lease", cfg: outbox.Config{Lease: 10 * time.Second, PublishTimeout: 5 * time.Second}, want: []string{"PublishTimeout (5s)"}},
		{name: "lease against the default timeout", cfg: outbox.Config{Lease: 10 * time.Second}, want: []string{"PublishTimeout (6s) must be less than half of Lease (10s)"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := test.cfg.Validate()
			if (err != nil) != (len(test.want) > 0) {
				t.Errorf("Validate() = %v, want %d mistakes", err, len(test.want))
			}
			for _, want := range test.want {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("Validate() = %v, want it to tell %q", err, want)
				}
			}
			if _, newErr := outbox.New(nil, nil, test.cfg, discard, noop.Meter{}); (newErr != nil) != (err != nil) {
				t.Errorf("New() = %v, want what Validate answered", newErr)
			}
		})
	}
}
