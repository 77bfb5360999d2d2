//go:build chaos

package app

import (
	"fmt"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"example.com/videocatalog/internal/consumer"
	"example.com/videocatalog/internal/outbox"
	"example.com/videocatalog/internal/port"
)

// tune sets fields of the Config of the packages from variables. For example,
// LAB_OUTBOX_PUBLISH_TIMEOUT sets outbox.Config.PublishTimeout. The fault lab and tests
// need shorter leases and timeouts than any deployment.
func tune(c *config, variables map[string]string) error {
	fields := struct {
		DatabaseWait time.Duration
		Outbox       *outbox.Config   `envPrefix:"OUTBOX_"`
		Consumer     *consumer.Config `envPrefix:"CONSUMER_"`
		Port         *port.Config     `envPrefix:"PORT_"`
	}{c.databaseWait, &c.outbox, &c.consumer, &c.port}
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
	err = env.ParseWithOptions(&fields, options)
	c.databaseWait = fields.DatabaseWait
	return err
}
