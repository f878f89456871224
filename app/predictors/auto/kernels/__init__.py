"""`auto` for kernel launches: a mixture of bottlenecks and fitted kernel costs."""
