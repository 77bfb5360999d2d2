package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// results are the measurements of a run: by benchmark and unit, one value per turn, in order.
type results struct {
	config  map[string]string
	names   []string // in the order of their first appearance
	figures map[string]map[string][]float64
}

func load(path string) (*results, error) {
	f, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, fmt.Errorf("open results: %w", err)
	}
	defer f.Close()
	r := &results{config: map[string]string{}, figures: map[string]map[string][]float64{}}
	reader := benchfmt.NewReader(f, path)
	for reader.Scan() {
		var broken *benchfmt.SyntaxError
		switch record := reader.Result().(type) {
		case *benchfmt.Result:
			r.add(record)
		case *benchfmt.SyntaxError:
			broken = record
		}
		if broken != nil {
			return nil, fmt.Errorf("read results: %w", broken)
		}
	}
	if err := reader.Err(); err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if len(r.names) == 0 {
		return nil, errors.New("read results: there are none in " + path)
	}
	return r, nil
}

func (r *results) add(record *benchfmt.Result) {
	name := record.Name.String()
	if _, parts := record.Name.Parts(); len(parts) > 0 && parts[len(parts)-1][0] == '-' { // GOMAXPROCS, which go test adds
		name = strings.TrimSuffix(name, string(parts[len(parts)-1]))
	}
	if r.figures[name] == nil {
		r.names = append(r.names, name)
		r.figures[name] = map[string][]float64{}
	}
	for _, v := range record.Values {
		r.figures[name][v.Unit] = append(r.figures[name][v.Unit], v.Value)
	}
	for _, c := range record.Config {
		r.config[c.Key] = string(c.Value)
	}
}

// median returns the median of the turns of a benchmark, or false if it was not run.
func (r *results) median(name, unit string) (float64, bool) {
	return median(r.figures[name][unit])
}

// max returns the maximum of the turns of a benchmark.
func (r *results) max(name, unit string) float64 {
	if all := r.figures[name][unit]; len(all) > 0 {
		return slices.Max(all)
	}
	return 0
}

// ratio returns the median of the ratios of two benchmarks, turn by turn. Turns of one round have the same
// other load on the machine.
func (r *results) ratio(name, to, unit string) (float64, bool) {
	return median(r.ratios(name, to, unit))
}

// ratios returns the ratio of each turn.
func (r *results) ratios(name, to, unit string) (ratios []float64) {
	over := r.figures[to][unit]
	for i, v := range r.figures[name][unit] {
		if i < len(over) && over[i] != 0 {
			ratios = append(ratios, v/over[i])
		}
	}
	return ratios
}

// with returns the benchmarks with a prefix, and the value of a key in each name.
func (r *results) with(prefix, key string) (names, values []string) {
	for _, name := range r.names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		for part := range strings.SplitSeq(name, "/") {
			if v, ok := strings.CutPrefix(part, key+"="); ok {
				names, values = append(names, name), append(values, v)
			}
		}
	}
	return names, values
}

func median(all []float64) (float64, bool) {
	if len(all) == 0 {
		return 0, false
	}
	all = slices.Sorted(slices.Values(all))
	middle := len(all) / 2
	if len(all)%2 == 1 {
		return all[middle], true
	}
	return (all[middle-1] + all[middle]) / 2, true
}
