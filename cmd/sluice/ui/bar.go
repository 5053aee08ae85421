package ui

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Bar draws on w how many of n bytes are copied; n is -1 where that is not known. Any goroutine may add to it.
func Bar(w io.Writer, n int64, more ...progressbar.Option) *progressbar.ProgressBar {
	// The interval is 0 because the library's own goroutine, which turns the spinner, reads the bar without its lock and
	// never ends where a copy fails. The spinner turns as bytes come.
	return progressbar.NewOptions64(n, append([]progressbar.Option{
		progressbar.OptionSetSpinnerChangeInterval(0), progressbar.OptionSetDescription("copying"), progressbar.OptionSetWriter(w),
		progressbar.OptionShowBytes(true), progressbar.OptionShowTotalBytes(true), progressbar.OptionThrottle(100 * time.Millisecond),
		progressbar.OptionShowCount(), progressbar.OptionSpinnerType(14), progressbar.OptionFullWidth(),
		progressbar.OptionOnCompletion(func() { _, _ = io.WriteString(w, "\n") }), // only paint
	}, more...)...)
}
