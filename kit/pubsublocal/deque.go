package pubsublocal

import "maps"

// deque is a ring buffer with fast access to both ends and to each index. It
// releases memory when it is mostly empty. The zero deque is empty.
type deque[T any] struct {
	ring  []T // its length is a power of two, or 0
	first int
	n     int
}

const smallestRing = 8

func (q *deque[T]) len() int { return q.n }

// at returns element i, counted from the front. i must be less than len.
func (q *deque[T]) at(i int) T { return q.ring[(q.first+i)&(len(q.ring)-1)] }

func (q *deque[T]) pushBack(v T) {
	q.grow()
	q.ring[(q.first+q.n)&(len(q.ring)-1)] = v
	q.n++
}

func (q *deque[T]) pushFront(v T) {
	q.grow()
	q.first = (q.first - 1) & (len(q.ring) - 1)
	q.ring[q.first] = v
	q.n++
}

func (q *deque[T]) popFront() T {
	var zero T
	v := q.ring[q.first]
	q.ring[q.first] = zero
	q.first = (q.first + 1) & (len(q.ring) - 1)
	q.n--
	if len(q.ring) > smallestRing && q.n < len(q.ring)/4 {
		q.resize(len(q.ring) / 2)
	}
	return v
}

// keep keeps the elements for which f is true.
func (q *deque[T]) keep(f func(T) bool) {
	old := *q
	*q = deque[T]{}
	for i := range old.n {
		if v := old.at(i); f(v) {
			q.pushBack(v)
		}
	}
}

func (q *deque[T]) grow() {
	if q.n == len(q.ring) {
		q.resize(max(smallestRing, 2*len(q.ring)))
	}
}

func (q *deque[T]) resize(size int) {
	ring := make([]T, size)
	for i := range q.n {
		ring[i] = q.at(i)
	}
	q.ring, q.first = ring, 0
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
