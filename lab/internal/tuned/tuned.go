// Package tuned runs a service with a Config from the environment, because tests and the fault lab
// need shorter leases and timeouts than any deployment. The service itself has no such variables.
package tuned

import (
	"fmt"
	"os"
	"strings"

	"github.com/caarlos0/env/v11"

	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/transport"
)

// Main is the function main of a service whose variables set fields of its Config. For example,
// LAB_OUTBOX_PUBLISH_TIMEOUT sets outbox.Config.PublishTimeout. Main returns only if a variable is
// wrong.
func Main(p app.Program) error {
	if err := read(&p.Limits, env.ToMap(os.Environ())); err != nil {
		return err
	}
	p.Main()
	return nil
}

func read(c *app.Limits, variables map[string]string) error {
	fields := struct {
		Outbox    *outbox.Config    `envPrefix:"OUTBOX_"`
		Consumer  *consumer.Config  `envPrefix:"CONSUMER_"`
		Transport *transport.Config `envPrefix:"TRANSPORT_"`
	}{&c.Outbox, &c.Consumer, &c.Transport}
	options := env.Options{Environment: variables, Prefix: "LAB_", UseFieldNameByDefault: true}
	known, err := env.GetFieldParamsWithOptions(&fields, options)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, field := range known {
		names[field.Key] = true
	}
	for name := range variables {
		if strings.HasPrefix(name, options.Prefix) && !names[name] {
			return fmt.Errorf("%s is not a field of a Config", name)
		}
	}
	return env.ParseWithOptions(&fields, options)
}
