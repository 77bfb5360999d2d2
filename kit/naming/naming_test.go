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
	for word, plural := range map[string]string{
		"value": "values", "delivery_window": "delivery_window_list", "window": "windows", "news": "news_list", "series": "series_list", "species": "species_list",
		"data": "data_list", "leaf": "leaves", "person": "people", "sales_person": "sales_people", "quiz": "quizzes", "schema": "schemas", "virus": "viruses", "lens": "lenses",
		"cache": "caches", "video": "videos", "hero": "heroes", "analysis": "analyses", "child": "children", "price_revision": "price_revisions", "organisation": "organisations",
	} {
		if got := Plural(word); got != plural {
			t.Errorf("Plural(%q) = %q, want %q", word, got, plural)
		}
	}
	for word, keyword := range map[string]bool{"order": true, "user": true, "orders": false, "current_catalog": true, "position": false, "values": false} {
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
	for word, refused := range map[string][2]bool{"class": {true, true}, "package": {true, false}, "order": {false, false}} {
		if got := [2]bool{IsClientKeyword(word), IsPythonKeyword(word)}; got != refused {
			t.Errorf("keywords of clients and of Python: %q = %t", word, got)
		}
	}
}
