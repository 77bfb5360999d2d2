package app

import (
	"fmt"
	"io"
)

const helpHead = `server is the program of the service.

  server [serve]                       run until SIGTERM or SIGINT
  server migrate                       bring the database schema up to date
  server drain                         publish everything pending, then exit
  server status                        show what waits, what is stuck and why
  server stuck [ITEM]                  list the aggregates whose event the broker refused, and the messages in quarantine; with ITEM, all about it
  server retry ITEM --why TEXT         publish that event, or apply that message, now; with --all: all that wait for a person
  server skip ITEM --why TEXT          show that message, and delete it
  server skip ITEM EVENT_ID --why TEXT show that event, and never publish it
         ITEM                          as stuck shows it: TYPE/ID, or the number of a message
         --by NAME                     who does it; default: the user and the host
         --dry-run                     change nothing, and count what matches
         --json                        of all that list or change: print JSON, one object per line
`

const helpTail = `  server version                       print the version
  server help                          print this

Exit codes: 0 done, or nothing matched; 1 failed, the output says what is changed; 2 wrong arguments or settings, and
3 what was named does not exist: nothing is changed; 4 some items could not be changed; 5 projection compare found differences.

Settings are environment variables: see docs/settings.md, and the README of each option.
`

func (p Program) printHelp(w io.Writer) error {
	fmt.Fprint(w, helpHead)
	for _, part := range p.Parts {
		fmt.Fprint(w, part.Help)
	}
	_, err := fmt.Fprint(w, helpTail)
	return err
}
