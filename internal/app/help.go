package app

import "strings"

const helpHead = `server is the program of the service.

  server [serve]                       run until SIGTERM or SIGINT
  server migrate                       bring the database schema up to date
  server drain                         publish everything pending, then exit
  server status                        show what waits, what is stuck and why
         --json                        of all that list or change: print JSON, one object per line
  server stuck [WHICH]                 list blocked aggregates, whose event the broker refused, and messages in quarantine
         WHICH is some of:
         --id ID                       as stuck shows it: the first event of an aggregate, or the number of a message
         --type TYPE --aggregate ID    about these aggregates
         --cause CAUSE                 as stuck shows it, or a part of the error
         --limit N                     at most so many aggregates, and so many messages; default: 10000
  server retry WHICH --why TEXT        publish these events, or apply these messages, now
  server skip WHICH --why TEXT         never publish these events, and delete these messages
         --all                         of retry and skip, in place of WHICH: all that wait for a person
         --by NAME                     of all that change something: who does it; default: the user and the host
         --dry-run                     of these: change nothing, and count what matches
`

const helpTail = `  server version                       print the version
  server help                          print this, as COMMAND --help does

Exit codes: 0 done, or nothing matched; 1 failed, the output says what is changed; 2 wrong arguments or settings, and
3 what was named does not exist: nothing is changed; 4 some items could not be changed; 5 projection compare found differences.

Settings are environment variables: see docs/settings.md, and the README of each option.
`

// help returns the help of all commands.
func (p Program) help() string {
	var text strings.Builder
	text.WriteString(helpHead)
	for _, part := range p.Parts {
		text.WriteString(part.Help)
	}
	return text.String() + helpTail
}
