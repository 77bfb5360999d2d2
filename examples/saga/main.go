// Command saga runs three services that sell something together: orders, inventory and
// payments. Each has its own schemas, roles and topic. They only read each other's events.
//
//	go run -C examples/saga .                                      300 orders
//	go run -C examples/saga . --orders 10000 --rate 40 --faults   and everything breaks meanwhile
//	go run -C examples/saga . --console                           with a console of each service
//
// It makes the services with cmd/new and cmd/entity, starts them with PostgreSQL and Pub/Sub on
// this machine, and plays their customers and a bank. The screen shows the orders. At the end it
// checks that each order was confirmed or canceled, once, that no stock was lost, and that
// exactly the confirmed orders were paid. If not, it lists what is wrong, and exits with 1.
//
// options/reactions/saga.md explains it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/servicekit/tool"
)

// timeout is how long an order may stay placed, and then stay reserved, before its timer cancels it.
const timeout = 10 * time.Second

// recovery is the time that faults may add before a saga counts as stuck. It is long, because
// the machine may be busy.
const recovery = 2 * time.Minute

type options struct {
	orders, rate int
	faults       bool
	console      bool
	seed         uint64
	dir          string
}

func main() {
	tool.Main("saga", "", func(ctx context.Context, _ []string, stdout io.Writer) error { return run(ctx, stdout) })
}

func parse() (o options, err error) {
	flag.IntVar(&o.orders, "orders", 300, "how many orders customers place")
	flag.IntVar(&o.rate, "rate", 20, "orders per second")
	flag.BoolVar(&o.faults, "faults", false, "kill services, PostgreSQL and connections, and repeat messages, all the time")
	flag.BoolVar(&o.console, "console", false, "serve a console of each service, and stay after the end until Ctrl-C")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the customers and the faults; default: the time")
	flag.StringVar(&o.dir, "dir", "../../.local/saga", "where the services and their logs are")
	flag.Parse()
	switch {
	case flag.NArg() > 0:
		return o, fmt.Errorf("unknown argument %q: try --help", flag.Arg(0))
	case o.orders < 1 || o.rate < 1:
		return o, errors.New("--orders and --rate must be at least 1")
	}
	o.dir, err = filepath.Abs(o.dir)
	return o, err
}

func run(ctx context.Context, out io.Writer) (err error) {
	o, err := parse()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "seed", o.seed)
	if err := makeServices(ctx, o.dir, out); err != nil {
		return err
	}
	s, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	for _, name := range services {
		fmt.Fprintf(out, "%-10s %s, log in %s\n", name, s.processes[name].url, s.processes[name].log)
	}
	for i, p := range s.consoles {
		fmt.Fprintf(out, "%-10s console at %s\n", services[i], p.url)
	}
	random := rand.New(rand.NewPCG(o.seed, 0))
	shop, err := s.open(ctx, o, random, out)
	if err != nil {
		return err
	}
	if err := shop.sell(ctx); err != nil {
		return err
	}
	result, err := s.result(ctx, shop)
	if err != nil {
		return err
	}
	err = report(out, result, result.check())
	if o.console {
		fmt.Fprintln(out, "Press Ctrl-C to end.")
		<-ctx.Done()
	}
	return err
}

// sell places the orders, and waits until all that follows from them has happened.
func (s *shop) sell(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	faults, calm := context.WithCancel(ctx)
	defer calm()
	broken, over := make(chan struct{}), false
	for _, task := range []func(context.Context) error{s.bank, s.show, s.watch} {
		g.Go(func() error { return task(ctx) })
	}
	g.Go(func() error {
		defer close(broken)
		return s.breakThings(faults)
	})
	g.Go(func() error {
		if err := s.customers(ctx); err != nil {
			return err
		}
		calm()
		<-broken
		if err := s.await(ctx); err != nil {
			return err
		}
		over = true
		cancel()
		return nil
	})
	if err := g.Wait(); !over {
		return err
	}
	return nil
}
