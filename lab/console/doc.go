// Package console looks at the console in a real browser. Its tests start cmd/dev, write
// videos, break something, and drive a headless Chromium: every page at three widths, in
// light and in dark, by keyboard alone, with the content security policy in force.
//
// They need Chromium. If it is not installed, they pass and log that nothing was looked at.
package console
