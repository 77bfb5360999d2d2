package envelope

import (
	"math"
	"time"

	"github.com/google/uuid"
)

// Reader converts the values of a payload, and keeps the first mistake. The zero Reader is
// ready for use. After a mistake the values are not valid: check Err.
type Reader struct{ err error }

// Err returns the first mistake, a [*DecodeError].
func (r *Reader) Err() error { return r.err }

func (r *Reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// ID reads a UUID.
func (r *Reader) ID(field, text string) uuid.UUID {
	id, err := uuid.Parse(text)
	if err != nil {
		r.fail(&DecodeError{Reason: field, Err: err})
	}
	return id
}

// Version reads the version of an aggregate, 1 to [MaxVersion].
func (r *Reader) Version(version int64) int64 {
	if version < 1 || version > MaxVersion {
		r.fail(Undecodable("version is %d, want a number from 1 to %d", version, int64(MaxVersion)))
	}
	return version
}

// MaxMillis is the longest duration that Go can express, in milliseconds.
const MaxMillis = math.MaxInt64 / int64(time.Millisecond)

// Within reads a number from first to last.
func (r *Reader) Within(field string, number, first, last int64) int64 {
	if number < first || number > last {
		r.fail(Undecodable("%s %d is out of range", field, number))
	}
	return number
}

// Time reads milliseconds since 1970-01-01 UTC; 0 is the zero time. It refuses what no API can
// express: google.protobuf.Timestamp and RFC 3339 cover the years 1 to 9999.
func (r *Reader) Time(field string, ms int64) time.Time {
	const (
		first = -62_135_596_800_000 // 0001-01-01T00:00:00Z
		last  = 253_402_300_799_999 // 9999-12-31T23:59:59.999Z
	)
	if r.Within(field, ms, first, last) == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// ValueOf reads a value of an enum. values has the number of each value.
func ValueOf[V, N comparable](r *Reader, field string, number N, values map[V]N) V {
	for value, n := range values {
		if n == number {
			return value
		}
	}
	r.fail(Undecodable("%s %v is unknown", field, number))
	var none V
	return none
}
