package pubsublocal

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

func self(s string) string { return s }

func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("projects/p/topics/t%04d", i)
	}
	return names
}

// All pages together have each item once. Only the last page has no token (A9, A10).
func TestPages(t *testing.T) {
	tests := []struct {
		items int
		size  int32
		want  []int // items of each page
	}{
		{0, 3, []int{0}},
		{1, 3, []int{1}},
		{3, 3, []int{3}},
		{4, 3, []int{3, 1}},
		{9, 3, []int{3, 3, 3}},
		{250, 0, []int{100, 100, 50}},
		{250, 1 << 30, []int{250}},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%d by %d", test.items, test.size), func(t *testing.T) {
			var sizes []int
			var joined []string
			for token := ""; ; {
				items, next, err := page(manyNames(test.items), self, test.size, token)
				if err != nil {
					t.Fatal(err)
				}
				joined = append(joined, items...)
				sizes = append(sizes, len(items))
				if token = next; next == "" {
					break
				}
			}
			if diff := cmp.Diff(test.want, sizes); diff != "" {
				t.Errorf("sizes (-want +got):\n%s", diff)
			}
			if !slices.Equal(joined, manyNames(test.items)) {
				t.Errorf("the pages joined = %q, want each item once", joined)
			}
		})
	}
}

// The last item of a page may be deleted before the next call (A9).
func TestPageAfterDeletedItem(t *testing.T) {
	_, token, err := page([]string{"a", "b", "c", "d"}, self, 2, "")
	if err != nil {
		t.Fatal(err)
	}
	got, next, err := page([]string{"a", "c", "d"}, self, 2, token)
	if want := []string{"c", "d"}; err != nil || next != "" || !slices.Equal(got, want) {
		t.Errorf("page() = %q, %q, %v, want %q and no token", got, next, err, want)
	}
}

// A negative size and a foreign token are INVALID_ARGUMENT (A10).
func TestPageRefuses(t *testing.T) {
	_, token, err := page(manyNames(3), self, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	changed := []byte(token)
	changed[len(changed)/2] ^= 1
	tests := map[string]struct {
		size  int32
		token string
		text  string
	}{
		"negative size":  {-1, "", "page_size"},
		"plain name":     {1, "projects/p/topics/t0000", "page_token"},
		"not base64":     {1, "!", "page_token"},
		"too short":      {1, base64.RawURLEncoding.EncodeToString([]byte("abc")), "page_token"},
		"encoded name":   {1, base64.RawURLEncoding.EncodeToString([]byte("projects/p/topics/t0000")), "page_token"},
		"one bit wrong":  {1, string(changed), "page_token"},
		"cut":            {1, token[:len(token)-2], "page_token"},
		"with a newline": {1, token + "\n", "page_token"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := page(manyNames(3), self, test.size, test.token)
			checkStatus(t, err, codes.InvalidArgument, test.text)
		})
	}
}
