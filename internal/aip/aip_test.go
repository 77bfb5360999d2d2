package aip

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"example.com/videocatalog/internal/problem"
)

// A name has its collection and one canonical id, and nothing else.
func TestParseName(t *testing.T) {
	t.Parallel()
	const id = "01890a5d-ac96-7f00-8b02-0c0d0e0f1003"
	if got, err := ParseName("name", "books/", "books/"+id); err != nil || got.String() != id {
		t.Errorf("ParseName() = %s, %v, want %s", got, err, id)
	}
	for _, name := range []string{
		"", "books/", id, "shelves/" + id, "books/" + id + "/", "books/urn:uuid:" + id, "books/{" + id + "}", "books/01890A5D-AC96-7F00-8B02-0C0D0E0F1003",
	} {
		if _, err := ParseName("name", "books/", name); !isInvalid(err, "name") {
			t.Errorf("ParseName(%q) = %v, want Invalid about name", name, err)
		}
	}
}

// An etag is read as it was written; anything else matches no version.
func TestParseEtag(t *testing.T) {
	t.Parallel()
	for etag, want := range map[string]int64{"": 0, Etag(1): 1, Etag(12345): 12345, "1": -1, `"0"`: -1, `"-1"`: -1, `"01"`: -1, `W/"1"`: -1, `"x"`: -1, `"*"`: -1} {
		if got := ParseEtag(etag); got != want {
			t.Errorf("ParseEtag(%s) = %d, want %d", etag, got, want)
		}
	}
}

// Ids and times keep their values; what is not set is empty.
func TestValues(t *testing.T) {
	t.Parallel()
	ids := []uuid.UUID{uuid.MustParse("01890a5d-ac96-7f00-8b02-0c0d0e0f1003"), uuid.Nil}
	if got := IDs(IDTexts(ids)); !slices.Equal(got, ids) {
		t.Errorf("IDs() = %v, want %v", got, ids)
	}
	if got := ID("no id"); got != uuid.Nil {
		t.Errorf("ID() = %s, want uuid.Nil", got)
	}
	for _, at := range []time.Time{{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} {
		if got := Time(Timestamp(at)); !got.Equal(at) {
			t.Errorf("Time() = %s, want %s", got, at)
		}
	}
}

// A mask names fields that can be changed, all of them, or those that are not empty.
func TestFields(t *testing.T) {
	t.Parallel()
	type field string
	resource := &pubsubpb.ListTopicsRequest{Project: "x", PageSize: 7}
	all := []field{"project", "page_token", "page_size"}
	for _, test := range []struct{ paths, want []string }{
		{nil, []string{"project", "page_size"}}, {[]string{"*"}, []string{"project", "page_token", "page_size"}}, {[]string{"page_token"}, []string{"page_token"}},
	} {
		got, err := Fields(&fieldmaskpb.FieldMask{Paths: test.paths}, resource, all)
		if err != nil || !slices.EqualFunc(got, test.want, func(f field, s string) bool { return string(f) == s }) {
			t.Errorf("Fields(%q) = %q, %v, want %q", test.paths, got, err, test.want)
		}
	}
	for _, path := range []string{"nothing", "project.x", ""} {
		if _, err := Fields(&fieldmaskpb.FieldMask{Paths: []string{path}}, resource, all); !isInvalid(err, "update_mask") {
			t.Errorf("Fields(%q) = %v, want Invalid about update_mask", path, err)
		}
	}
}

// A page has 50 items unless the caller says how many, and at most 1000.
func TestPageSize(t *testing.T) {
	t.Parallel()
	for size, want := range map[int32]int{0: 50, 1: 1, 1000: 1000, 1001: 1000, math.MaxInt32: 1000} {
		if p, err := NewPager[int](nil, &pubsubpb.ListTopicsRequest{PageSize: size}); err != nil || p.Size != want {
			t.Errorf("size of page_size %d = %d, %v, want %d", size, p.Size, err, want)
		}
	}
	if _, err := NewPager[int](nil, &pubsubpb.ListTopicsRequest{PageSize: -1}); !isInvalid(err, "page_size") {
		t.Errorf("NewPager() of -1 = %v, want Invalid about page_size", err)
	}
}

func isInvalid(err error, field string) bool {
	known, ok := errors.AsType[*problem.Error](err)
	return ok && known.Kind == problem.Invalid && known.Field == field
}
