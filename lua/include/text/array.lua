--[[ array: JSON arrays, as events have them. ]]

--- How an array goes on behind its first fields, and ends. `fields` are JSON, up to `size` of them, and null for a missing one; there are
--- no nulls at the end.
local function rest_of_array(fields, size)
  while size > 0 and not fields[size] do
    size = size - 1
  end
  if size == 0 then
    return ']'
  end
  for at = 1, size do
    fields[at] = fields[at] or 'null'
  end
  return ',' .. table.concat(fields, ',', 1, size) .. ']'
end
