package naming

import "testing"

func TestNaming(t *testing.T) {
	t.Parallel()
	for word, vowel := range map[string]bool{
		"order": true, "user": false, "unit": false, "uninstall": true, "hour": true, "horse": false, "utility": false, "ewe": false, "Invoice": true, "": false,
	} {
		if got := StartsWithVowel(word); got != vowel {
			t.Errorf("StartsWithVowel(%q) = %t", word, got)
		}
	}
	for word, plural := range map[string]string{
		"order": "orders", "category": "categories", "key": "keys", "box": "boxes", "status": "statuses", "match": "matches", "address": "addresses", "clause": "clauses", "movie": "movies", "": "",
	} {
		if got := Plural(word); got != plural {
			t.Errorf("Plural(%q) = %q, want %q", word, got, plural)
		}
		if got := Singular(plural); got != word {
			t.Errorf("Singular(%q) = %q, want %q", plural, got, word)
		}
	}
	for word, keyword := range map[string]bool{"order": true, "user": true, "orders": false, "current_catalog": true} {
		if got := IsSQLKeyword(word); got != keyword {
			t.Errorf("IsSQLKeyword(%q) = %t", word, got)
		}
	}
	for word, suffix := range map[string]bool{"test": true, "linux": true, "mips64le": true, "unix": false, "order": false} {
		if got := IsFileSuffix(word); got != suffix {
			t.Errorf("IsFileSuffix(%q) = %t", word, got)
		}
	}
	for word, want := range map[string]string{"../orders": "../orders", "my orders": "'my orders'", "Bob's": `'Bob'\''s'`, "": "''"} {
		if got := ForShell(word); got != want {
			t.Errorf("ForShell(%q) = %s, want %s", word, got, want)
		}
	}
	for word, refused := range map[string]bool{"class": true, "order": false} {
		if got := IsClientKeyword(word); got != refused {
			t.Errorf("IsClientKeyword(%q) = %t", word, got)
		}
	}
}
