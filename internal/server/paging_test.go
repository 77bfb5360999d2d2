package server

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/domain"
	"example.com/videocatalog/internal/transport"
)

// lister reads one page of a list. It returns the names, and the token of the next page.
type lister func(c client, pageSize int32, token string) (names []string, next string, err error)

func listers(t *testing.T) map[string]lister {
	t.Helper()
	videos := func(orderBy string) lister {
		return func(c client, pageSize int32, token string) ([]string, string, error) {
			response, err := c.videos.ListVideos(t.Context(), &videov1.ListVideosRequest{PageSize: pageSize, PageToken: token, OrderBy: orderBy})
			return namesOf(response.GetVideos()), response.GetNextPageToken(), err
		}
	}
	entries := func(orderBy string) lister {
		return func(c client, pageSize int32, token string) ([]string, string, error) {
			response, err := c.catalog.ListCatalogEntries(t.Context(), &catalogv1.ListCatalogEntriesRequest{PageSize: pageSize, PageToken: token, OrderBy: orderBy})
			return namesOf(response.GetCatalogEntries()), response.GetNextPageToken(), err
		}
	}
	return map[string]lister{
		"videos, newest first":  videos(""),
		"videos, oldest first":  videos("create_time"),
		"entries, newest first": entries(""),
		"entries by title":      entries("title"),
		"search": func(c client, pageSize int32, token string) ([]string, string, error) {
			response, err := c.catalog.SearchCatalogEntries(t.Context(), &catalogv1.SearchCatalogEntriesRequest{PageSize: pageSize, PageToken: token, Query: "ha"})
			return namesOf(response.GetCatalogEntries()), response.GetNextPageToken(), err
		},
	}
}

func namesOf[T interface{ GetName() string }](items []T) []string {
	var names []string
	for _, item := range items {
		_, id, _ := strings.Cut(item.GetName(), "/")
		names = append(names, id)
	}
	return names
}

// The pages of a list have every item exactly once, with any page size, even if
// titles, times or ranks are equal.
func TestPagesMeetEverythingOnce(t *testing.T) {
	t.Parallel()
	_, c := serve(t, transport.Config{})
	var want []string
	for i := range 13 {
		v := mustCreate(t, c, &videov1.Video{Title: strings.Repeat("ha ", 1+i%3)})
		mustPublish(t, c, v)
		want = append(want, strings.TrimPrefix(v.GetName(), "videos/"))
	}
	slices.Sort(want)
	for name, list := range listers(t) {
		for _, pageSize := range []int32{1, 2, 5, 12, 13, 14, 0, 1000, 1001, math.MaxInt32} {
			var got []string
			pages := 0
			for token := ""; ; pages++ {
				names, next, err := list(c, pageSize, token)
				if err != nil {
					t.Fatalf("%s, page_size %d: %v", name, pageSize, err)
				}
				got = append(got, names...)
				if token = next; token == "" {
					break
				}
			}
			slices.Sort(got)
			same(t, fmt.Sprintf("%s, page_size %d", name, pageSize), want, got)
			if pageSize > 0 && pages+1 != (13+int(pageSize)-1)/int(pageSize) {
				t.Errorf("%s, page_size %d: %d pages, want as few as possible", name, pageSize, pages+1)
			}
		}
	}
}

// From page to page, a request may change its page_size and nothing else. A token
// is valid only in the list that it is from.
func TestPageTokensBelongToTheirRequest(t *testing.T) {
	t.Parallel()
	r := start(t, transport.Config{})
	c := r.grpcClient(t)
	for range 3 {
		mustPublish(t, c, mustCreate(t, c, &videov1.Video{Title: "ha", LanguageCode: "en"}))
	}
	request := &videov1.ListVideosRequest{PageSize: 1}
	first, err := c.videos.ListVideos(t.Context(), request)
	must(t, err)
	request.PageToken = first.GetNextPageToken()
	wider := proto.CloneOf(request)
	wider.PageSize = 10
	if response, err := c.videos.ListVideos(t.Context(), wider); err != nil || len(response.GetVideos()) != 2 {
		t.Errorf("with another page_size: %v, %v, want the two others", response, err)
	}
	for name, change := range map[string]func(*videov1.ListVideosRequest){
		"filter":       func(r *videov1.ListVideosRequest) { r.Filter = `language_code = "en"` },
		"order_by":     func(r *videov1.ListVideosRequest) { r.OrderBy = "create_time" },
		"show_deleted": func(r *videov1.ListVideosRequest) { r.ShowDeleted = true },
		"cursor":       func(r *videov1.ListVideosRequest) { r.PageToken = flip(t, r.PageToken, 30) },
		"nonce":        func(r *videov1.ListVideosRequest) { r.PageToken = flip(t, r.PageToken, 80) },
		"its end":      func(r *videov1.ListVideosRequest) { r.PageToken = r.PageToken[:len(r.PageToken)-4] },
	} {
		changed := proto.CloneOf(request)
		change(changed)
		_, err := c.videos.ListVideos(t.Context(), changed)
		checkToken(t, "with another "+name, err)
	}
	_, err = c.catalog.ListCatalogEntries(t.Context(), &catalogv1.ListCatalogEntriesRequest{PageSize: 1, PageToken: request.GetPageToken()})
	checkToken(t, "in another list", err)

	search := &catalogv1.SearchCatalogEntriesRequest{PageSize: 1, Query: "ha"}
	matches, err := c.catalog.SearchCatalogEntries(t.Context(), search)
	must(t, err)
	search.PageToken, search.Query = matches.GetNextPageToken(), "a"
	_, err = c.catalog.SearchCatalogEntries(t.Context(), search)
	checkToken(t, "with another query", err)
}

// flip changes one byte of a decoded token, counted from the end.
func flip(t *testing.T, token string, fromEnd int) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(token)
	must(t, err)
	raw[len(raw)-fromEnd] ^= 1
	return base64.RawURLEncoding.EncodeToString(raw)
}

func checkToken(t *testing.T, name string, err error) {
	t.Helper()
	if got := violations(err); status.Code(err) != codes.InvalidArgument || !slices.Equal(got, []string{"page_token"}) {
		t.Errorf("token %s: %v, violations %q, want InvalidArgument about page_token", name, err, got)
	}
}

// A token returns its cursor unchanged: otherwise pages would skip or repeat items.
func TestTokensKeepCursors(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("0191d000-0000-7000-8000-0000000000ff")
	checkCursor(t, domain.VideoCursor{CreateTime: time.Date(2026, 11, 21, 10, 0, 0, 123_000_000, time.UTC), ID: id})
	checkCursor(t, domain.EntryCursor{Title: `"<&>\u0000\\u0000 ` + "\u2028\t愛", VideoID: id})
	checkCursor(t, domain.MatchCursor{Rank: 1.0 / 3, VideoID: id})
	checkCursor(t, domain.MatchCursor{Rank: math.SmallestNonzeroFloat32, VideoID: id})
	checkCursor(t, domain.Position{Transaction: math.MaxUint64, VideoID: id})
	for _, character := range []string{"\u0001", "<", "\u2028", "🎬"} { // the longest title, in the characters that cost most
		checkCursor(t, domain.EntryCursor{Title: strings.Repeat(character, 200), VideoID: uuid.Max, PublishTime: time.Date(2026, 1, 1, 1, 1, 1, 999_000_000, time.UTC)})
	}
}

func checkCursor[C any](t *testing.T, want C) {
	t.Helper()
	tokens := aip.NewTokens(&catalogv1.SearchCatalogEntriesRequest{Query: "x"}, "page_token")
	token, err := tokens.Encode(want)
	must(t, err)
	if len(token) > 2000 {
		t.Errorf("token of %+v is %d long, want at most the 2000 of the contract", want, len(token))
	}
	var got C
	must(t, tokens.Decode(token, &got))
	same(t, fmt.Sprintf("%T", want), want, got)
}
