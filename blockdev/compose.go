package blockdev

// Refresh is Resizable's, for a device that may have no such method.
func Refresh(d Device) (bool, error) {
	if r, ok := d.(Resizable); ok {
		return r.Refresh()
	}
	return false, nil
}

// SpaceOf is SpaceReporter's, for a device that may have no such method: ErrUnsupported then.
func SpaceOf(d Device) (Space, error) {
	if s, ok := d.(SpaceReporter); ok {
		return s.Space()
	}
	return Space{}, ErrUnsupported
}

// Path is Explainer's, for a device that may have no such method.
func Path(d Device) string {
	if e, ok := d.(Explainer); ok {
		return e.Path()
	}
	return "a device that does not say"
}
