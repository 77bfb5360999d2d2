package pubsublocal

import (
	"maps"

	"github.com/gammazero/deque"
)

// keep keeps the elements for which f is true.
func keep[T any](q *deque.Deque[T], f func(T) bool) {
	for range q.Len() {
		if v := q.PopFront(); f(v) {
			q.PushBack(v)
		}
	}
}

// table is a map that releases memory when it is mostly empty. The zero table
// is empty. m may be read, but not written.
type table[K comparable, V any] struct {
	m    map[K]V
	peak int
}

func (t *table[K, V]) set(k K, v V) {
	if t.m == nil {
		t.m = map[K]V{}
	}
	t.m[k] = v
	t.peak = max(t.peak, len(t.m))
}

func (t *table[K, V]) remove(k K) {
	delete(t.m, k)
	if t.peak > 1024 && len(t.m) < t.peak/4 {
		smaller := make(map[K]V, len(t.m))
		maps.Copy(smaller, t.m)
		t.m, t.peak = smaller, len(smaller)
	}
}
