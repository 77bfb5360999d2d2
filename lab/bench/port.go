package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/port"
	"example.com/videocatalog/internal/server"
)

// serveCommand runs this program as one of the compared servers, in its own process, so that its
// CPU time is measured separately.
const serveCommand = "serve-port"

// The compared servers, and the protocols of their calls.
const (
	portOurs = "ours"      // the shared port of the service: routing, validation, recovery, status mapping
	portGRPC = "bare-grpc" // grpc-go with the generated handler, nothing else
	portHTTP = "grpc-http" // the same over net/http, as the shared port has it
	portH2C  = "bare-h2c"  // net/http, HTTP/2 without TLS, the same messages as bodies
	portREST = "ours-rest" // the shared port, JSON over HTTP/1.1
)

// answer is the video that every server returns.
var answer = domain.Video{
	ID: videoID(1), VideoDetails: domain.VideoDetails{Title: "Seven Samurai", Description: description, Tags: []string{"drama"}},
	State: domain.VideoStateDraft, Version: 1, CreateTime: time.UnixMilli(1_700_000_000_000).UTC(), UpdateTime: time.UnixMilli(1_700_000_000_000).UTC(),
}

// oneVideo is a store with one video. It supports only GetVideo.
type oneVideo struct{ server.VideoStore }

func (oneVideo) GetVideo(context.Context, uuid.UUID) (domain.Video, error) { return answer, nil }

type bareVideo struct {
	videov1.UnimplementedVideoServiceServer
	video *videov1.Video
}

func (s bareVideo) GetVideo(context.Context, *videov1.GetVideoRequest) (*videov1.Video, error) {
	return s.video, nil
}

// bareAnswer has about the same fields as the response of the service for answer.
var bareAnswer = &videov1.Video{Name: "videos/" + answer.ID.String(), Title: answer.Title, Description: answer.Description, Tags: answer.Tags, Etag: `"1"`}

// servePort prints its address, and serves until its standard input ends. So it ends with the
// process that started it.
func servePort(ctx context.Context, kind string, stdout io.Writer) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if _, err := fmt.Fprintln(stdout, listener.Addr()); err != nil {
		return fmt.Errorf("print the address: %w", err)
	}
	switch kind {
	case portOurs:
		s, err := port.New(port.Config{}, port.Deps{
			Services: []port.Service{server.Videos(oneVideo{})}, Listener: listener, Log: discard,
		})
		if err != nil {
			return err
		}
		return s.Run(ctx)
	case portGRPC:
		s := grpc.NewServer()
		videov1.RegisterVideoServiceServer(s, bareVideo{video: bareAnswer})
		context.AfterFunc(ctx, s.Stop)
		return s.Serve(listener)
	case portHTTP:
		s := grpc.NewServer()
		videov1.RegisterVideoServiceServer(s, bareVideo{video: bareAnswer})
		return serveH2C(ctx, listener, s)
	case portH2C:
		return serveH2C(ctx, listener, http.HandlerFunc(bareHandler))
	}
	return fmt.Errorf("no server %q", kind)
}

// serveH2C serves HTTP/2 without TLS until ctx ends.
func serveH2C(ctx context.Context, listener net.Listener, handler http.Handler) error {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: handler, Protocols: protocols, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// bareHandler reads a protobuf request and writes the response, without the framing of gRPC.
func bareHandler(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, &videov1.GetVideoRequest{})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, err := proto.Marshal(bareAnswer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(out) // the error is only that the client has disconnected
}

// ports measures a unary call that does nothing: 32 calls at a time over one connection, or for
// REST over 32.
func ports(ctx context.Context, p profile, r *results) (err error) {
	const callers = 32
	kinds := []string{portOurs, portGRPC, portHTTP, portH2C, portREST}
	type target struct {
		process *portProcess
		call    func(ctx context.Context) error
	}
	targets := map[string]target{}
	for _, kind := range kinds {
		program := kind
		if kind == portREST {
			program = portOurs
		}
		process, err := startPort(ctx, program)
		if err != nil {
			return err
		}
		defer process.stop()
		call, stop, err := caller(kind, process.addr, callers)
		if err != nil {
			return err
		}
		defer stop()
		if err := call(ctx); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		targets[kind] = target{process, call}
	}
	for range p.rounds {
		for _, kind := range kinds {
			t := targets[kind]
			before, err := readStat(t.process.cmd.Process.Pid)
			if err != nil {
				return err
			}
			perSecond, err := rate(ctx, callers, p.turn, func(ctx context.Context, _ int) error { return t.call(ctx) })
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			after, err := readStat(t.process.cmd.Process.Pid)
			if err != nil {
				return err
			}
			n := perSecond * p.turn.Seconds()
			if err := r.write("Port/server="+kind, int(n), value{"requests/s", perSecond},
				value{"server-cpu-us/request", float64((after.own - before.own).Microseconds()) / n}); err != nil {
				return err
			}
		}
	}
	return nil
}

// caller returns a function that calls a server, and one that closes the connections.
func caller(kind, addr string, callers int) (call func(context.Context) error, stop func(), err error) {
	name := "videos/" + answer.ID.String()
	if kind == portOurs || kind == portGRPC || kind == portHTTP {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, nil, fmt.Errorf("connect: %w", err)
		}
		client := videov1.NewVideoServiceClient(conn)
		return func(ctx context.Context) error {
			_, err := client.GetVideo(ctx, &videov1.GetVideoRequest{Name: name})
			return err
		}, func() { _ = conn.Close() }, nil
	}
	transport := &http.Transport{MaxIdleConnsPerHost: callers}
	request := func(ctx context.Context) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/"+name, http.NoBody)
	}
	if kind == portH2C {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
		request = func(ctx context.Context) (*http.Request, error) {
			body, err := proto.Marshal(&videov1.GetVideoRequest{Name: name})
			if err != nil {
				return nil, err
			}
			return http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/", bytes.NewReader(body))
		}
	}
	return func(ctx context.Context) error {
		r, err := request(ctx)
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, body)
		}
		if err == nil && kind == portH2C {
			err = proto.Unmarshal(body, &videov1.Video{})
		}
		return err
	}, transport.CloseIdleConnections, nil
}

// portProcess is a server in its own process.
type portProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	addr  string
}

func startPort(ctx context.Context, kind string) (*portProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, serveCommand, kind) //nolint:gosec // this program itself
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	p := &portProcess{cmd: cmd, stdin: stdin}
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start server %s: it printed no address: %w", kind, err)
	}
	p.addr = strings.TrimSpace(addr)
	return p, nil
}

func (p *portProcess) stop() {
	_ = p.stdin.Close()
	_ = p.cmd.Wait() // its error is that it was stopped
}
