"""What several tests share: problems, damage, fake services. Imported as `helpers.NAME`."""
