package port

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/net/netutil"
)

// Run serves until ctx is done, then drains and returns nil. It returns an
// error if it cannot serve. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, 2)
	var serving sync.WaitGroup
	serving.Go(func() { ended <- s.grpc.Serve(s.inProcess) })
	serving.Go(func() { ended <- s.http.Serve(netutil.LimitListener(s.deps.Listener, s.cfg.MaxConnections)) })
	defer serving.Wait()

	defer s.stop(ctx)
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	}
}

// stop drains the server. net/http goes first, because it waits for all its
// calls. The gateway's connection and the gRPC server, which serve those calls,
// go last: grpc.Server.GracefulStop would abort calls that came through
// net/http.
func (s *Server) stop(ctx context.Context) {
	s.drain() // not ready from now on; ends streams, and tells handlers that wait

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.deps.Log.WarnContext(ctx, "server: cutting off what did not end in time", "err", err)
	}
	_ = s.http.Close() // the error of a connection that is closed anyway
	_ = s.conn.Close() // the same
	s.grpc.Stop()
	for _, service := range s.deps.Services {
		if service.Wait != nil {
			service.Wait()
		}
	}
}
