package server

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"example.com/videocatalog/internal/aip"
	"example.com/videocatalog/internal/problem"
)

// inItem names the item of a batch in an error for the caller, as in requests[3].request_id. An index below 0 names none.
func inItem(list string, i int, err error) error {
	known, ok := errors.AsType[*problem.Error](err)
	if !ok || i < 0 {
		return err
	}
	named, item := *known, fmt.Sprintf("%s[%d]", list, i)
	if named.Field != "" {
		named.Field = item + "." + named.Field
	} else {
		named.Message = item + ": " + named.Message
	}
	return &named
}

// distinct returns problem.Invalid for the first id that an earlier item has, too. field has the place of its index.
// uuid.Nil is no id.
func distinct(field string, ids []uuid.UUID) error {
	items := make(map[uuid.UUID]int, len(ids))
	for i, id := range ids {
		if first, again := items[id]; again && id != uuid.Nil {
			return problem.InvalidField(fmt.Sprintf(field, i), "is the same as that of item %d", first)
		}
		items[id] = i
	}
	return nil
}

// idsOf returns the ids in the names of a batch, whose form the contract has checked. Each is there once.
func idsOf(collection string, names []string) ([]uuid.UUID, error) {
	ids := aip.Each(names, func(name string) uuid.UUID { return aip.ID(strings.TrimPrefix(name, collection)) })
	return ids, distinct("names[%d]", ids)
}

// inOrder returns what was found as messages, in the order of the ids. One that was not found is problem.NotFound.
func inOrder[A, M any](what string, ids []uuid.UUID, found map[uuid.UUID]A, toProto func(A) M) (all []M, err error) {
	for i, id := range ids {
		a, ok := found[id]
		if !ok {
			return nil, inItem("names", i, problem.Errorf(problem.NotFound, "%s %q does not exist", what, id))
		}
		all = append(all, toProto(a))
	}
	return all, nil
}
