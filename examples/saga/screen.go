package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// show shows the orders until ctx ends: on a terminal always in the same place, else as one line
// every five seconds.
func (s *shop) show(ctx context.Context) error {
	info, err := os.Stdout.Stat()
	if err != nil {
		return err
	}
	terminal := info.Mode()&os.ModeCharDevice != 0
	every := 5 * time.Second
	if terminal {
		every = 250 * time.Millisecond
	}
	for sleep(ctx, every) {
		s.print(terminal)
	}
	s.print(terminal)
	return nil
}

// print prints the state of all orders, and on a terminal the events of the newest orders.
func (s *shop) print(terminal bool) {
	s.mu.Lock()
	placed, fault := s.placed, s.fault
	s.mu.Unlock()
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	confirmed, canceled := s.history.counts["OrderConfirmed"], s.history.counts["OrderCanceled"]
	summary := fmt.Sprintf("%d orders placed, %d open, %d confirmed, %d canceled; %d payments captured", len(placed),
		len(placed)-confirmed-canceled, confirmed, canceled, s.history.counts["PaymentCaptured"])
	if fault != "" {
		summary += "; " + fault
	}
	if !terminal {
		fmt.Fprintln(s.out, summary)
		return
	}
	const last, width = 12, 150
	lines := []string{"", summary, ""}
	for _, o := range placed[max(0, len(placed)-last):] {
		events := s.history.orders[o.id]
		if len(events) == 0 {
			continue
		}
		took := events[len(events)-1].At.Sub(events[0].At)
		line := []rune(fmt.Sprintf("%s  %5.1f s  %s", o.id[len(o.id)-6:], took.Seconds(), path(events)))
		lines = append(lines, string(line[:min(len(line), width)]))
	}
	if s.shown > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA", s.shown)
	}
	fmt.Fprintln(s.out, "\x1b[J"+strings.Join(lines, "\n"))
	s.shown = len(lines)
}
