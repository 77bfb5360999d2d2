//go:build deep

package main

import "time"

func init() { tenantRows, tenantTime = 1_000_000, time.Minute }
