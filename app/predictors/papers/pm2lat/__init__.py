"""`kernel_table`: PM2Lat."""
