// Package fields checks the fields of a Config.
package fields

import (
	"errors"
	"fmt"
	"reflect"
)

// NotNegative returns an error that names every field of a struct that is a negative
// integer or duration.
func NotNegative(config any) error {
	var errs []error
	for field, value := range reflect.ValueOf(config).Fields() {
		if value.CanInt() && value.Int() < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative", field.Name))
		}
	}
	return errors.Join(errs...)
}
