package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	gax "github.com/googleapis/gax-go/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/idtoken"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/admin"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/event"
	"example.com/videocatalog/internal/problem"
	"example.com/videocatalog/internal/server"
	"example.com/videocatalog/internal/store"
)

// rebuildSource is the address that rebuild reads from, and its credentials.
type rebuildSource struct {
	address  string // HOST:PORT
	tls      bool
	audience string // of an ID token of Google; empty if there is none
	file     string // has an ID token; empty if there is none
}

// parseRebuild reads the arguments of rebuild.
func parseRebuild(args []string) (o operation, request admin.RebuildRequest, s rebuildSource, err error) {
	var idToken bool
	if o, err = parseAction("rebuild", args, func(flags *flag.FlagSet) {
		flags.BoolVar(&idToken, "id-token", false, "")
		flags.BoolVar(&request.Restart, "restart", false, "")
		flags.StringVar(&s.audience, "audience", "", "")
		flags.StringVar(&s.file, "token-file", "", "")
	}); err != nil {
		return o, request, s, err
	}
	request.Request = o.Request
	request.Filter.Type = event.AggregateVideo
	switch {
	case len(o.args) > 1:
		err = fmt.Errorf("rebuild has %d arguments, want one, HOST:PORT or https://HOST, or none: try `server help`", len(o.args))
	case s.audience != "" && !idToken:
		err = errors.New("--audience is the audience of the token that --id-token requests: give both")
	case s.file != "" && idToken:
		err = errors.New("--id-token and --token-file are two ways to get one token: give one of them")
	case len(o.args) == 0 && (idToken || s.file != ""):
		err = errors.New("--id-token and --token-file are for a VideoService at https://HOST: give that, too")
	case len(o.args) == 1:
		err = s.parse(o.args[0], idToken)
	}
	if err != nil {
		err = usageError(err)
	}
	request.Source = s.address
	return o, request, s, err
}

// parse reads HOST:PORT or https://HOST.
func (s *rebuildSource) parse(target string, idToken bool) error {
	if !strings.Contains(target, "://") {
		s.address = target
		if _, port, err := net.SplitHostPort(target); err != nil || port == "" {
			return fmt.Errorf("rebuild from %q: want HOST:PORT, or https://HOST for TLS", target)
		}
		if idToken || s.file != "" {
			return fmt.Errorf("rebuild from %q: want https://HOST, because a token must not be sent in the clear", target)
		}
		return nil
	}
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.TrimSuffix(target, "/") != "https://"+u.Host {
		return fmt.Errorf("rebuild from %q: want https://HOST[:PORT] and nothing else, or HOST:PORT without TLS", target)
	}
	s.tls, s.address = true, u.Host
	if u.Port() == "" {
		s.address = net.JoinHostPort(u.Hostname(), "443")
	}
	if idToken && s.audience == "" {
		s.audience = "https://" + u.Host
	}
	return nil
}

// connect makes the connection to the source. It does not wait until it is open.
func (s rebuildSource) connect(ctx context.Context) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if s.tls {
		transport = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	switch {
	case s.file != "":
		read := bearer(func() (string, error) {
			text, err := os.ReadFile(s.file) //nolint:gosec // the operator names it
			return string(text), err
		})
		if _, err := read(); err != nil { // fail now, not with the status of a call
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		options = append(options, grpc.WithPerRPCCredentials(read))
	case s.audience != "":
		tokens, err := idtoken.NewTokenSource(ctx, s.audience)
		if err != nil {
			return nil, fmt.Errorf("--id-token: %w; it needs a service account: on your own machine, give --token-file", err)
		}
		options = append(options, grpc.WithPerRPCCredentials(bearer(func() (string, error) {
			token, err := tokens.Token()
			if err != nil {
				return "", err
			}
			return token.AccessToken, nil
		})))
	}
	return grpc.NewClient(s.address, options...)
}

// refused returns advice if the source refused the caller, or an empty string.
func (s rebuildSource) refused(err error) string {
	switch code := status.Code(err); {
	case code == codes.Unauthenticated && s.audience == "" && s.file == "":
		return "; it wants a token: give --id-token or --token-file"
	case code == codes.Unauthenticated:
		return "; it does not take the token: is the audience one of its AUTH_AUDIENCE, or its URL?"
	case code == codes.PermissionDenied:
		return "; the caller needs video.v1.VideoService/ListVideos and GetVideo in its policy, or roles/run.invoker"
	}
	return ""
}

// bearer returns the ID token. It is called for each call, because the token may have
// changed.
type bearer func() (string, error)

// GetRequestMetadata sends the token in two headers. Cloud Run reads one of them, the
// second if there is one, and removes the signature from it: see internal/auth.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b()
	if err != nil {
		return nil, fmt.Errorf("get token: %w", err)
	}
	value := "Bearer " + strings.TrimSpace(token)
	return map[string]string{"authorization": value, "x-serverless-authorization": value}, nil
}

// RequireTransportSecurity returns true: the token must not be sent without TLS.
func (bearer) RequireTransportSecurity() bool { return true }

// videoOwner has the calls of a rebuild. A client of VideoService is one.
type videoOwner interface {
	ListVideos(ctx context.Context, request *videov1.ListVideosRequest, options ...grpc.CallOption) (*videov1.ListVideosResponse, error)
	GetVideo(ctx context.Context, request *videov1.GetVideoRequest, options ...grpc.CallOption) (*videov1.Video, error)
}

// ownVideos is VideoService in this process, without a port.
type ownVideos struct{ service videov1.VideoServiceServer }

// newOwnVideos returns VideoService over a pool. Its page tokens are those of every process,
// so that each can resume a rebuild.
func newOwnVideos(ctx context.Context, commands *pgxpool.Pool) (ownVideos, error) {
	key, err := store.NewOutbox(commands).TokenKey(ctx)
	if err != nil {
		return ownVideos{}, err
	}
	seal, err := aip.NewSeal(key)
	if err != nil {
		return ownVideos{}, err
	}
	service, ok := server.Videos(store.NewVideos(commands, nil), seal).Handler.(videov1.VideoServiceServer)
	if !ok {
		return ownVideos{}, errors.New("the handler of VideoService does not serve it")
	}
	return ownVideos{service}, nil
}

func (o ownVideos) ListVideos(ctx context.Context, request *videov1.ListVideosRequest, _ ...grpc.CallOption) (*videov1.ListVideosResponse, error) {
	response, err := o.service.ListVideos(ctx, request)
	return response, asStatus(err)
}

func (o ownVideos) GetVideo(ctx context.Context, request *videov1.GetVideoRequest, _ ...grpc.CallOption) (*videov1.Video, error) {
	video, err := o.service.GetVideo(ctx, request)
	return video, asStatus(err)
}

// asStatus returns an error as the port does, if a rebuild goes on after it.
func asStatus(err error) error {
	known, ok := errors.AsType[*problem.Error](err)
	switch {
	case ok && known.Kind == problem.NotFound:
		return status.Error(codes.NotFound, known.Message)
	case ok && known.Kind == problem.Unavailable:
		return status.Error(codes.Unavailable, known.Error())
	}
	return err
}

// readCalls is how many calls read single entries of the owner at the same time.
const readCalls = 8

// list returns a page of the owner's list, and the token of the next one.
func (r *rebuilder) list(ctx context.Context, request *videov1.ListVideosRequest) (entries []domain.Entry, next string, err error) {
	response, err := call(ctx, r, r.owner.ListVideos, request)
	if err != nil {
		return nil, "", fmt.Errorf("list videos after %d: %w%s", r.result.Entries, err, r.source.refused(err))
	}
	entries = make([]domain.Entry, len(response.GetVideos()))
	for i, video := range response.GetVideos() {
		if entries[i], err = entryOf(video); err != nil {
			return nil, "", err
		}
	}
	return entries, response.GetNextPageToken(), nil
}

// pair is an entry of the live catalog, and that of the owner, which was read later.
type pair struct {
	was   domain.Entry // in the live catalog
	entry domain.Entry // of the owner
	found bool         // the owner has the video
}

// compareWithOwner reads entries of the live catalog, and then those of the owner. It leaves
// out those that the live catalog does not have.
func (r *rebuilder) compareWithOwner(ctx context.Context, keys []string) ([]pair, error) {
	ids := make([]uuid.UUID, len(keys))
	for i, key := range keys {
		var err error
		if ids[i], err = uuid.Parse(key); err != nil {
			return nil, fmt.Errorf("key of an entry %q: %w", key, err)
		}
	}
	was, err := r.catalog.FindEntries(ctx, ids)
	if err != nil {
		return nil, err
	}
	pairs := make([]pair, 0, len(was))
	for _, entry := range was {
		pairs = append(pairs, pair{was: entry})
	}
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(readCalls)
	for i := range pairs {
		reads.Go(func() error {
			id := pairs[i].was.VideoID
			video, err := call(ctx, r, r.owner.GetVideo, &videov1.GetVideoRequest{Name: "videos/" + id.String()})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			if err != nil {
				return fmt.Errorf("get video %s: %w%s", id, err, r.source.refused(err))
			}
			pairs[i].found = true
			pairs[i].entry, err = entryOf(video)
			return err
		})
	}
	return pairs, reads.Wait()
}

// retryTimeout is how long one call may take, with all its retries.
const retryTimeout = time.Minute

// call calls the owner. It tries again while the owner limits the rate of this caller and,
// once the owner was reached, while it is unavailable. The retries of gRPC are not
// enough: they stop after the header of a response, which the server sends before a status.
func call[Q, A any](ctx context.Context, r *rebuilder, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (response A, err error) {
	busy := []codes.Code{codes.ResourceExhausted}
	if r.reached.Load() {
		busy = append(busy, codes.Unavailable)
	}
	retry := func() gax.Retryer {
		return gax.OnCodes(busy, gax.Backoff{Initial: time.Second, Max: 5 * time.Second, Multiplier: 2})
	}
	err = gax.Invoke(ctx, func(ctx context.Context, _ gax.CallSettings) error {
		response, err = method(ctx, request)
		return err
	}, gax.WithRetry(retry), gax.WithTimeout(retryTimeout))
	if err == nil {
		r.reached.Store(true)
	}
	return response, err
}

func entryOf(v *videov1.Video) (domain.Entry, error) {
	id, err := uuid.Parse(strings.TrimPrefix(v.GetName(), "videos/"))
	if err != nil {
		return domain.Entry{}, fmt.Errorf("video name %q: %w", v.GetName(), err)
	}
	video := domain.Video{
		ID: id,
		Details: domain.Details{
			Title: v.GetTitle(), Description: v.GetDescription(), ReleaseYear: v.GetReleaseYear(),
			Duration: v.GetDuration().AsDuration(), LanguageCode: v.GetLanguageCode(), Tags: v.GetTags(),
		},
		State: domain.Draft, Version: v.GetVersion(), UpdateTime: v.GetUpdateTime().AsTime(),
	}
	if v.GetState() == videov1.Video_STATE_PUBLISHED {
		video.State = domain.Published
		video.PublishTime = v.GetPublishTime().AsTime()
	}
	if v.GetDeleteTime() != nil {
		video.DeleteTime = v.GetDeleteTime().AsTime()
	}
	return domain.EntryOf(video), nil
}
