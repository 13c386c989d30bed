"""Networks whose Hessian spectrum is known exactly."""
