package app

import "flag"

var update = flag.Bool("update", false, "write the pages that are generated again")
