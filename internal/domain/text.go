package domain

import (
	"strings"
	"unicode"
)

// blank reports whether a text has no visible character.
func blank(text string) bool { return !strings.ContainsFunc(text, visible) }

// visible reports whether a character is visible by itself. Unicode marks some
// letters as ignorable, such as the Hangul filler. The blank Braille pattern is
// a symbol without ink, and needs its own rule.
func visible(r rune) bool {
	return unicode.IsPrint(r) && r != ' ' && r != '\u2800' &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
