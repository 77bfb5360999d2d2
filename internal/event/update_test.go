package event_test

import "flag"

var update = flag.Bool("update", false, "write the samples in testdata that are still encoded; see testdata/README.md")
