package app

import "testing"

func TestConsumersHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		names []string
		good  bool
	}{{[]string{"a", "b"}, true}, {[]string{"a", "b", "a"}, false}} {
		var subscribed []Subscription
		for _, name := range test.names {
			subscribed = append(subscribed, Subscription{Consumer: name})
		}
		if err := checkConsumers(subscribed); (err == nil) != test.good {
			t.Errorf("checkConsumers(%q) = %v, want an error: %t", test.names, err, !test.good)
		}
	}
}
