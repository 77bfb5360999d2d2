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
	for word, plural := range map[string]string{"value": "value_list", "delivery_window": "delivery_window_list", "window": "windows"} {
		if got := Plural(word); got != plural {
			t.Errorf("Plural(%q) = %q, want %q", word, got, plural)
		}
	}
	for word, keyword := range map[string]bool{"order": true, "user": true, "orders": false, "current_catalog": true} {
		if got := IsSQLKeyword(word); got != keyword {
			t.Errorf("IsSQLKeyword(%q) = %t", word, got)
		}
	}
	for word, suffix := range map[string]bool{"order_test": true, "_linux": true, "x_mips64le": true, "x_unix": false, "test": false, "": false} {
		if got := HasFileSuffix(word); got != suffix {
			t.Errorf("HasFileSuffix(%q) = %t", word, got)
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
