// Package naming has the rules for names of services and entities: the meaning of a word in SQL, Go
// and a shell, and its forms in English.
package naming

import (
	"regexp"
	"slices"
	"strings"
)

// IsSQLKeyword reports whether a word is reserved in SQL, so that it cannot be a name without
// quotes (https://www.postgresql.org/docs/current/sql-keywords-appendix.html).
func IsSQLKeyword(word string) bool { return slices.Contains(keywords, word) }

var keywords = strings.Fields(`all analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast
	char character check coalesce collate collation column concurrently constraint create cross current_catalog current_date current_role
	current_schema current_time current_timestamp current_user dec decimal default deferrable desc distinct do else end except exists extract false
	fetch float for foreign freeze from full grant greatest group grouping having ilike in initially inner inout int integer intersect interval into
	is isnull join lateral leading least left like limit localtime localtimestamp national natural nchar none normalize not notnull null nullif
	numeric offset on only or order out outer overlaps overlay placing position precision primary real references returning right row select
	session_user setof similar smallint some substring symmetric system_user table tablesample then time timestamp to trailing treat trim true union
	unique user using values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces
	xmlparse xmlpi xmlroot xmlserialize xmltable analyse`)

// HasFileSuffix reports whether the file NAME.go would be a test, or of one system only: see go help buildconstraint.
func HasFileSuffix(name string) bool {
	return slices.ContainsFunc(fileSuffixes, func(suffix string) bool { return strings.HasSuffix(name, "_"+suffix) })
}

// The systems and processors of Go's internal/syslist, and test.
var fileSuffixes = strings.Fields(`test aix android darwin dragonfly freebsd hurd illumos ios js linux nacl netbsd openbsd plan9 solaris wasip1 windows
	zos 386 amd64 amd64p32 arm armbe arm64 arm64be loong64 mips mipsle mips64 mips64le mips64p32 mips64p32le ppc ppc64 ppc64le riscv riscv64 s390 s390x
	sparc sparc64 wasm`)

// IsInitialism reports whether a part of a name is written in capitals in Go.
func IsInitialism(part string) bool { return slices.Contains(initialisms, part) }

// The words that staticcheck (ST1003) and revive (var-naming) know.
var initialisms = strings.Fields(`acl amqp api ascii cpu css db dns eof gid guid html http https id ip json qps ram rpc rtp sip sla smtp sql ssh tcp
	tls ts ttl udp ui uid uri url utf8 uuid vm xml xmpp xsrf xss`)

// IsClientKeyword reports whether a word is a keyword of Java, JavaScript or Python.
func IsClientKeyword(word string) bool { return slices.Contains(clientKeywords, word) }

var clientKeywords = strings.Fields(`abstract and arguments as assert async await boolean break byte case catch char class const continue crate debugger def
	default del delete do double elif else enum eval except export extends false final finally float for from function global goto if implements
	import in instanceof int interface is lambda let long native new nonlocal not null or package pass private protected public raise return self
	short static strictfp super switch synchronized this throw throws transient true try typeof var void volatile while with yield`)

// ForShell returns a word, such as the path of a folder, for a command line of a POSIX shell: in
// quotes if it has characters that may be special.
func ForShell(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// StartsWithVowel reports whether an English word begins with the sound of a vowel, so that
// its article is an. It knows the usual exceptions.
func StartsWithVowel(word string) bool {
	word = strings.ToLower(word)
	for _, consonant := range []string{"uni", "use", "usa", "usu", "uti", "eu", "one", "once", "ewe"} {
		if strings.HasPrefix(word, consonant) {
			return strings.HasPrefix(word, "unin") || strings.HasPrefix(word, "unim")
		}
	}
	for _, silent := range []string{"hour", "honest", "honor", "heir"} {
		if strings.HasPrefix(word, silent) {
			return true
		}
	}
	return word != "" && strings.ContainsRune("aeiou", rune(word[0]))
}

// Plural returns the regular plural of an English word, or word_list if the plural could not be a name.
func Plural(word string) string {
	ends := func(suffixes ...string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(word, s) })
	}
	plural := word + "s"
	switch {
	case word == "":
		return ""
	case ends("s", "x", "z", "ch", "sh"):
		plural = word + "es"
	case ends("y") && !ends("ay", "ey", "iy", "oy", "uy"):
		plural = word[:len(word)-1] + "ies"
	}
	if IsSQLKeyword(plural) || HasFileSuffix(plural) {
		return word + "_list"
	}
	return plural
}

// Singular returns the singular of a usual English plural. Any other word is returned as it is.
func Singular(word string) string {
	ends := func(suffixes ...string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(word, s) })
	}
	switch {
	case ends("ies") && !ends("kies", "vies"): // cookies, movies
		return word[:len(word)-3] + "y"
	case ends("sses", "xes", "zes", "ches", "shes"), ends("uses") && !ends("auses", "ouses"): // statuses, but clauses
		return word[:len(word)-2]
	case ends("ss"):
		return word
	}
	return strings.TrimSuffix(word, "s")
}
