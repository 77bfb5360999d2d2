// Package naming has the rules for names of services and entities: the meaning of a word in SQL, Go
// and a shell, and its forms in English.
package naming

import (
	"regexp"
	"slices"
	"strings"

	pluralize "github.com/gertd/go-pluralize"
)

// IsSQLKeyword reports whether PostgreSQL needs quotes around a word that names a table or a column: SELECT catcode IN ('R', 'T') FROM
// pg_get_keywords(). Other keywords, such as position, are names as they are.
func IsSQLKeyword(word string) bool { return slices.Contains(keywords, word) }

var keywords = strings.Fields(`all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
	column concurrently constraint create cross current_catalog current_date current_role current_schema current_time current_timestamp current_user
	default deferrable desc distinct do else end except false fetch for foreign freeze from full grant group having ilike in initially inner intersect
	into is isnull join lateral leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing
	primary references returning right select session_user similar some symmetric system_user table tablesample then to trailing true union unique user
	using variadic verbose when where window with`)

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

// IsClientKeyword reports whether a word is a keyword of Java, JavaScript or Python, so that it cannot be the name of a package.
func IsClientKeyword(word string) bool { return slices.Contains(clientKeywords, word) }

// IsPythonKeyword reports whether clients in Python cannot name a field so. Java and JavaScript can.
func IsPythonKeyword(word string) bool { return slices.Contains(pythonKeywords, word) }

var pythonKeywords = strings.Fields(`and as assert async await break class continue def del elif else except finally for from global if import in is
	lambda nonlocal not or pass raise return try while with yield`)

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

// Plural returns the plural of an English word, or word_list if the plural could not be a name, or is the word itself, as of news.
func Plural(word string) string {
	last := strings.LastIndexByte(word, '_') + 1
	plural := word[:last] + english.Plural(word[last:])
	if word != "" && (plural == word || IsSQLKeyword(plural) || HasFileSuffix(plural)) {
		return word + "_list"
	}
	return plural
}

// english has the usual plurals of some words for which the library has another.
var english = func() *pluralize.Client {
	client := pluralize.NewClient()
	for word, plural := range map[string]string{"agenda": "agendas", "bias": "biases", "lens": "lenses", "schema": "schemas", "virus": "viruses"} {
		client.AddIrregularRule(word, plural)
	}
	return client
}()

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
